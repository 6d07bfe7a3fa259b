// Perfetto's trace processor, as a web page ships it, outside of a browser:
// bytes of its RPC come in at stdin and go out at stdout.
//
// usage: node engine.cjs DIRECTORY_OF_engine_bundle.js

const fs = require('node:fs');
const path = require('node:path');

const directory = process.argv[2];
const { stdin, stdout, stderr, exit } = process;

// The bundle is made for a web worker and refuses to start elsewhere: it gets
// what a worker has, and does not see Node.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: 'http://engine/', protocol: 'http:', host: 'engine' };
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.file = path.join(directory, path.basename(String(name)));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
};
console.log = console.warn = console.error = (...words) => stderr.write(words.join(' ') + '\n');
const fail = (error) => {
  stderr.write(`${(error && error.stack) || error}\n`);
  exit(1);
};
process.on('uncaughtException', fail);
process.on('unhandledRejection', fail);
delete globalThis.process;

const port = { postMessage: (bytes) => stdout.write(Buffer.from(bytes)) };
(0, eval)(fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8'));
self.onmessage({ data: port });
// Its WebAssembly is loaded by now; what waits for that runs before this.
setImmediate(() => {
  stdin.on('data', (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
});
