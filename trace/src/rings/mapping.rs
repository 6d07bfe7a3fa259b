//! The memory of rings: a memfd, mapped. All that is unsafe about rings is here.

use super::layout::{Header, MAGIC, MAX_RINGS, RingHeader};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;

/// Why a mapping of rings cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RingsError {
    /// No memory, no descriptors, or a descriptor of something else.
    #[error("rings of the trace: {0}")]
    Io(#[from] std::io::Error),
    /// Not made by this version of the launcher.
    #[error("rings of the trace: the descriptor is of another layout or version")]
    Layout,
}

/// Invariant, checked by both constructors: the memory holds a [`Header`] and,
/// from `words_offset()` on, `ring_count * ring_words + 2 * open_words` words.
#[derive(Debug)]
pub(super) struct Mapping {
    file: File,
    map: MmapRaw,
    size: Size,
}

/// How much a mapping holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// At most [`MAX_RINGS`].
    pub(super) rings: usize,
    /// Of each ring; a power of two.
    pub(super) ring_words: usize,
    /// Of each account of what is open; 0, or a power of two.
    pub(super) open_words: usize,
}

impl Size {
    fn is_possible(self) -> bool {
        self.rings <= MAX_RINGS
            && self.ring_words.is_power_of_two()
            && (self.open_words == 0 || self.open_words.is_power_of_two())
    }

    const fn bytes(self) -> usize {
        let words = self.rings * self.ring_words + 2 * self.open_words;
        words_offset() + words * size_of::<u64>()
    }
}

impl Mapping {
    /// Fresh memory.
    pub(super) fn create(size: Size) -> Result<Mapping, RingsError> {
        assert!(size.is_possible());
        let (file, map) = memory(size.bytes())?;
        let mapping = Mapping { file, map, size };
        let header = mapping.header();
        for (word, value) in [
            (&header.ring_count, size.rings),
            (&header.ring_words, size.ring_words),
            (&header.open_words, size.open_words),
        ] {
            word.store(value as u32, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok(mapping)
    }

    /// Memory that another process made.
    pub(super) fn open(fd: OwnedFd) -> Result<Mapping, RingsError> {
        let file = File::from(fd);
        let len = file.metadata()?.len();
        if len < size_of::<Header>() as u64 {
            return Err(RingsError::Layout);
        }
        let mut mapping = Mapping {
            map: MmapOptions::new().map_raw(&file)?,
            file,
            size: Size {
                rings: 0,
                ring_words: 1,
                open_words: 0,
            },
        };
        let header = mapping.header();
        let whole = header.magic.load(Ordering::Acquire) == MAGIC;
        let size = Size {
            rings: header.ring_count.load(Ordering::Relaxed) as usize,
            ring_words: header.ring_words.load(Ordering::Relaxed) as usize,
            open_words: header.open_words.load(Ordering::Relaxed) as usize,
        };
        if !whole || !size.is_possible() || size.bytes() as u64 != len {
            return Err(RingsError::Layout);
        }
        mapping.size = size;
        Ok(mapping)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a Header long, page-aligned, lives as
        // long as `self`, and a Header is atomics only, valid for all bytes.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    pub(super) fn count(&self) -> usize {
        self.size.rings
    }

    pub(super) fn ring(&self, ring: usize) -> (&RingHeader, &[AtomicU64]) {
        assert!(ring < self.size.rings);
        let words = self.words(ring * self.size.ring_words, self.size.ring_words);
        (&self.header().rings[ring], words)
    }

    /// The place of the `number`th account of what is open.
    pub(super) fn open_account(&self, number: u64) -> &[AtomicU64] {
        let Size {
            rings,
            ring_words,
            open_words,
        } = self.size;
        let place = (number % 2) as usize;
        self.words(rings * ring_words + place * open_words, open_words)
    }

    fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        let end = words_offset() + (first + count) * size_of::<u64>();
        assert!(end <= self.size.bytes());
        let offset = words_offset() + first * size_of::<u64>();
        // SAFETY: the invariant and the assertion; the offset is a multiple of
        // 8; atomics are valid for all bytes.
        unsafe {
            let first = self.map.as_ptr().add(offset).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, count)
        }
    }
}

/// Zeroed memory, and the file that it is of.
#[cfg(not(miri))]
fn memory(len: usize) -> Result<(File, MmapRaw), RingsError> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("nano-trace-rings", flags).map_err(std::io::Error::from)?;
    let file = File::from(fd);
    file.set_len(len as u64)?;
    // Nobody can pull the memory from under a mapping.
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(std::io::Error::from)?;
    let map = MmapOptions::new().map_raw(&file)?;
    Ok((file, map))
}

/// Miri knows no memfd: memory of no file, which is all that it can watch.
#[cfg(miri)]
fn memory(len: usize) -> Result<(File, MmapRaw), RingsError> {
    let map = MmapOptions::new().len(len).map_anon()?;
    Ok((File::open("/dev/null")?, map.into()))
}

const fn words_offset() -> usize {
    size_of::<Header>().next_multiple_of(PAGE)
}
