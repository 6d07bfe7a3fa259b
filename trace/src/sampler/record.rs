//! What the signal handler takes down of a thread: its registers and its stack.

/// One record, of exactly [`RawSample::BYTES`]. Valid for any bytes, zeros too.
#[repr(C)]
pub(crate) struct RawSample {
    /// CLOCK_BOOTTIME.
    pub(crate) time_ns: u64,
    /// CPU time that this record stands for.
    pub(crate) weight_ns: u64,
    /// Bytes of `stack` that were read.
    pub(crate) len: u64,
    /// Where the thread was.
    pub(crate) ip: u64,
    /// In DWARF's order of x86-64: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    pub(crate) registers: [u64; 16],
    /// Memory from the stack pointer up.
    pub(crate) stack: [u8; RawSample::STACK_BYTES],
}

impl RawSample {
    /// Sixteen pages: whoever leaves the stack's pages untouched needs no memory for them.
    pub(crate) const BYTES: usize = 64 << 10;
    /// As deep as stacks are kept; the frames beyond are lost, and the sample says so.
    pub(crate) const STACK_BYTES: usize = RawSample::BYTES - 8 * 20;
    /// The stack pointer's place in [`RawSample::registers`].
    pub(crate) const SP: usize = 7;
    /// The frame pointer's.
    pub(crate) const BP: usize = 6;

    /// The word at an address, if it was taken down.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.registers[Self::SP])?).ok()?;
        let len = (self.len as usize).min(Self::STACK_BYTES);
        let bytes = self.stack[..len].get(offset..offset.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// The stack may go on where it was cut.
    pub(crate) fn is_full(&self) -> bool {
        self.len as usize >= Self::STACK_BYTES
    }
}

const _: () = assert!(size_of::<RawSample>() == RawSample::BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_were_read_are_given() {
        // SAFETY: valid for zeros, see the type.
        let mut raw: Box<RawSample> = unsafe { Box::new_zeroed().assume_init() };
        raw.registers[RawSample::SP] = 0x7000;
        raw.len = 20;
        raw.stack[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        assert_eq!(raw.word(0x7008), Some(77));
        assert_eq!(raw.word(0x700c), Some(0), "the last whole word");
        for outside in [0x6fff, 0x700d, 0x7010, u64::MAX, 0] {
            assert_eq!(raw.word(outside), None, "{outside:#x}");
        }
        // A length that no handler writes.
        raw.len = u64::MAX;
        let last = 0x7000 + RawSample::STACK_BYTES as u64 - 8;
        assert_eq!((raw.word(last), raw.word(last + 1)), (Some(0), None));
    }
}
