//! From a thread's registers and stack to functions and lines, by the tables
//! that compilers leave in programs: `.eh_frame` for the way up the stack, line
//! tables and symbols for names.
//!
//! Everything here allocates and reads files: it runs on the sampler's thread,
//! never on a sampled one.

mod lookup;
mod modules;
mod unwind;

use crate::sampler::RawSample;
use lookup::Lookup;
pub use modules::Module;
use modules::Modules;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use unwind::StackEnd;
use unwind::Unwinder;

/// A function that a thread was in.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its name, without the hash that Rust adds; the module's name in brackets
    /// if no table knows it.
    pub function: Arc<str>,
    /// The source file.
    pub file: Option<Arc<str>>,
    /// The line in it; 0: unknown.
    pub line: u32,
    /// The module that it lies in.
    pub module: Option<Arc<Module>>,
    /// The address, as in the module's file.
    pub address: u64,
}

/// The modules of this process, and what they say about addresses.
pub struct Symbols {
    modules: Modules,
    unwinder: Unwinder,
    /// By module; made when first asked.
    lookups: Vec<Option<Lookup>>,
    known: HashMap<u64, Arc<[Frame]>>,
    /// Every text once.
    texts: HashMap<Box<str>, Arc<str>>,
    /// Of the newest stack.
    addresses: Vec<u64>,
    stack: Vec<Arc<[Frame]>>,
    /// An address was in no module: one may have come.
    is_stale: bool,
    refreshed: Instant,
}

/// Addresses and texts that are remembered, at most; then all are forgotten.
const MAX_KNOWN: usize = 1 << 16;
/// So long between two looks for new modules.
const REFRESH: Duration = Duration::from_secs(1);

impl Symbols {
    /// Of the modules that are loaded now. Reads the program's own tables, so
    /// that the first samples need not wait for them.
    pub fn new() -> Symbols {
        let modules = Modules::of_this_process();
        let mut symbols = Symbols {
            unwinder: Unwinder::new(&modules),
            lookups: Vec::new(),
            modules,
            known: HashMap::new(),
            texts: HashMap::new(),
            addresses: Vec::new(),
            stack: Vec::new(),
            is_stale: false,
            refreshed: Instant::now(),
        };
        let own: fn() -> Symbols = Symbols::new;
        symbols.frames(own as usize as u64);
        symbols
    }

    /// Looks for new modules, if an address lay outside of those that are known
    /// and the last look is a while ago.
    pub(crate) fn refresh_if_stale(&mut self) {
        if self.is_stale && self.refreshed.elapsed() >= REFRESH {
            self.refresh();
        }
    }

    /// Looks for new modules.
    pub(crate) fn refresh(&mut self) {
        self.is_stale = false;
        self.refreshed = Instant::now();
        if self.modules.refresh() {
            self.unwinder = Unwinder::new(&self.modules);
            self.known.clear();
        }
    }

    /// The places that a thread was in, the innermost first.
    pub(crate) fn stack(&mut self, raw: &RawSample) -> (&[Arc<[Frame]>], StackEnd) {
        let mut addresses = std::mem::take(&mut self.addresses);
        let mut end = self.unwinder.unwind(raw, &mut addresses);
        // Without tables, the way up is a guess by the frame pointer, which may be
        // anything: it ends where that is zero.
        let outermost = addresses.last().and_then(|&last| self.modules.place(last));
        if end == StackEnd::Root && outermost.is_none() {
            end = StackEnd::Lost;
        }
        self.is_stale |= end == StackEnd::Lost;
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.extend(addresses.iter().map(|&address| self.frames(address)));
        (self.addresses, self.stack) = (addresses, stack);
        (&self.stack, end)
    }

    /// The functions at an address, the innermost first: more than one where a
    /// compiler put one into the other, and never none.
    pub fn frames(&mut self, address: u64) -> Arc<[Frame]> {
        if let Some(frames) = self.known.get(&address) {
            return Arc::clone(frames);
        }
        if self.known.len() >= MAX_KNOWN || self.texts.len() >= MAX_KNOWN {
            self.known.clear();
            self.texts.clear();
        }
        let frames: Arc<[Frame]> = self.find(address).into();
        self.known.insert(address, Arc::clone(&frames));
        frames
    }

    fn find(&mut self, address: u64) -> Vec<Frame> {
        let Some(place) = self.modules.place(address) else {
            self.is_stale = true;
            return vec![Frame {
                function: self.text("[unknown]"),
                file: None,
                line: 0,
                module: None,
                address,
            }];
        };
        if self.lookups.len() <= place {
            self.lookups.resize_with(place + 1, || None);
        }
        let module = Arc::clone(&self.modules.list()[place]);
        let address = module.to_file(address);
        let lookup = self.lookups[place].get_or_insert_with(|| Lookup::new(&module));
        let mut found = lookup.functions(address);
        if found.is_empty() {
            let function = format!("[{}]", module.name());
            found.push(lookup::Function {
                function,
                ..Default::default()
            });
        }
        let frame = |function: lookup::Function| Frame {
            function: self.text(&function.function),
            file: function.file.map(|file| self.text(&file)),
            line: function.line,
            module: Some(Arc::clone(&module)),
            address,
        };
        found.into_iter().map(frame).collect()
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(text.into(), Arc::clone(&shared));
        shared
    }
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    fn inlined_here(number: u64) -> u64 {
        std::hint::black_box(number)
    }

    #[inline(never)]
    fn outer(number: u64) -> u64 {
        inlined_here(inlined_here(number) + 1)
    }

    #[test]
    fn functions_files_and_inlined_ones_are_found() {
        let mut symbols = Symbols::new();
        let start = outer as fn(u64) -> u64 as usize as u64;
        let mut names = Vec::new();
        for address in start..start + 16 {
            let frames = symbols.frames(address);
            let last = frames.last().unwrap();
            assert_eq!(&*last.function, "nano_trace::symbols::tests::outer");
            assert!(last.file.as_ref().unwrap().ends_with("symbols/mod.rs"));
            let module = last.module.as_ref().unwrap();
            assert_eq!(last.address, module.to_file(address));
            names.extend(frames.iter().map(|frame| frame.function.to_string()));
        }
        // Line tables hold the short names of what was inlined.
        assert!(names.iter().any(|name| name == "inlined_here"), "{names:?}");
        let again = symbols.frames(start);
        assert!(Arc::ptr_eq(&again, &symbols.frames(start)));
    }

    #[test]
    fn a_function_of_a_library_is_found_and_nowhere_is_nowhere() {
        let mut symbols = Symbols::new();
        let frames = symbols.frames(libc::getenv as *const () as usize as u64);
        assert!(frames[0].function.contains("getenv"), "{frames:?}");
        let module = frames[0].module.as_ref().unwrap();
        assert!(module.name().starts_with("libc"), "{module:?}");
        assert!(!module.build_id().is_empty());
        for nowhere in [0, 16, u64::MAX] {
            let frames = symbols.frames(nowhere);
            assert_eq!(&*frames[0].function, "[unknown]");
            assert!(frames[0].module.is_none());
        }
    }
}
