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
/// from `words_offset()` on, `ring_count * ring_words` words.
#[derive(Debug)]
pub(super) struct Mapping {
    file: File,
    map: MmapRaw,
    ring_count: usize,
    ring_words: usize,
}

impl Mapping {
    /// Fresh memory for `count` rings (at most [`MAX_RINGS`]) of `words` words
    /// (a power of two).
    pub(super) fn create(count: usize, words: u32) -> Result<Mapping, RingsError> {
        assert!(count <= MAX_RINGS && words.is_power_of_two());
        let (file, map) = memory(size_of_mapping(count, words as usize))?;
        let mapping = Mapping {
            file,
            map,
            ring_count: count,
            ring_words: words as usize,
        };
        let header = mapping.header();
        header.ring_count.store(count as u32, Ordering::Relaxed);
        header.ring_words.store(words, Ordering::Relaxed);
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
            ring_count: 0,
            ring_words: 0,
        };
        let header = mapping.header();
        let whole = header.magic.load(Ordering::Acquire) == MAGIC;
        let count = header.ring_count.load(Ordering::Relaxed) as usize;
        let words = header.ring_words.load(Ordering::Relaxed) as usize;
        if !whole
            || count > MAX_RINGS
            || !words.is_power_of_two()
            || size_of_mapping(count, words) as u64 != len
        {
            return Err(RingsError::Layout);
        }
        mapping.ring_count = count;
        mapping.ring_words = words;
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
        self.ring_count
    }

    pub(super) fn ring(&self, ring: usize) -> (&RingHeader, &[AtomicU64]) {
        assert!(ring < self.ring_count);
        let offset = words_offset() + ring * self.ring_words * size_of::<u64>();
        // SAFETY: the invariant; the offset is a multiple of 8; atomics are
        // valid for all bytes.
        let words = unsafe {
            let first = self.map.as_ptr().add(offset).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, self.ring_words)
        };
        (&self.header().rings[ring], words)
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

const fn size_of_mapping(count: usize, words: usize) -> usize {
    words_offset() + count * words * size_of::<u64>()
}
