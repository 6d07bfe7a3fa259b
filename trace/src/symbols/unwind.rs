//! The way up a stack that was taken down, by the tables in `.eh_frame`.

use super::modules::{Modules, Section};
use crate::sampler::RawSample;
use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};

/// Where the way up a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEnd {
    /// Where the thread began.
    Root,
    /// The stack is deeper than what is taken down of it.
    Deep,
    /// Tables or memory did not say where to go on.
    Lost,
}

impl StackEnd {
    /// What is missing, in words.
    pub fn error(self) -> Option<&'static str> {
        match self {
            StackEnd::Root => None,
            StackEnd::Deep => Some("the stack is deeper than what is sampled of it"),
            StackEnd::Lost => Some("no way up the stack from here"),
        }
    }
}

/// See the module.
pub(super) struct Unwinder {
    tables: UnwinderX86_64<Section>,
    cache: CacheX86_64,
}

/// DWARF's numbers of registers, as [`RawSample::registers`] has them.
const REGISTERS: [Reg; 16] = [
    Reg::RAX,
    Reg::RDX,
    Reg::RCX,
    Reg::RBX,
    Reg::RSI,
    Reg::RDI,
    Reg::RBP,
    Reg::RSP,
    Reg::R8,
    Reg::R9,
    Reg::R10,
    Reg::R11,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
];

impl Unwinder {
    pub(super) fn new(modules: &Modules) -> Unwinder {
        let mut tables = UnwinderX86_64::new();
        for module in modules.list() {
            let sections = module.sections();
            let addresses = |s: &Option<Section>| s.as_ref().map(|s| s.addresses.clone());
            let info = ExplicitModuleSectionInfo {
                text_svma: addresses(&sections.text),
                text: sections.text.clone(),
                got_svma: sections.got.clone(),
                eh_frame_svma: addresses(&sections.eh_frame),
                eh_frame: sections.eh_frame.clone(),
                eh_frame_hdr_svma: addresses(&sections.eh_frame_hdr),
                eh_frame_hdr: sections.eh_frame_hdr.clone(),
                ..Default::default()
            };
            let path = module.path().to_owned();
            tables.add_module(Module::new(path, module.range(), module.bias(), info));
        }
        Unwinder {
            tables,
            cache: CacheX86_64::new(),
        }
    }

    /// The addresses to look up, the innermost first.
    pub(super) fn unwind(&mut self, raw: &RawSample, stack: &mut Vec<u64>) -> StackEnd {
        stack.clear();
        let (sp, bp) = (raw.registers[RawSample::SP], raw.registers[RawSample::BP]);
        let mut registers = UnwindRegsX86_64::new(raw.ip, sp, bp);
        for (register, value) in REGISTERS.into_iter().zip(raw.registers) {
            registers.set(register, value);
        }
        let mut read = |address| raw.word(address).ok_or(());
        let mut frames = self
            .tables
            .iter_frames(raw.ip, registers, &mut self.cache, &mut read);
        while stack.len() < MAX_DEPTH {
            match frames.next() {
                Ok(Some(frame)) => stack.push(frame.address_for_lookup()),
                Ok(None) => return StackEnd::Root,
                Err(framehop::Error::CouldNotReadStack(_)) if raw.is_full() => {
                    return StackEnd::Deep;
                }
                Err(_) => return StackEnd::Lost,
            }
        }
        StackEnd::Deep
    }
}

/// Deeper stacks are cut.
const MAX_DEPTH: usize = 512;
