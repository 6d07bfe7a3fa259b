//! What is loaded into this process: its program and its libraries.

use crate::sampler::{self, read_memory};
use memmap2::Mmap;
use object::{Object, ObjectSection, ObjectSegment};
use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// A program or library, as it is mapped.
#[derive(Clone)]
pub struct Module {
    path: String,
    build_id: Vec<u8>,
    /// Its addresses in this process.
    range: Range<u64>,
    /// Where the first of them lies in the file.
    file_offset: u64,
    /// An address in this process less the one in the file.
    bias: u64,
    sections: Sections,
}

/// The parts of a module that tell the way up the stack.
#[derive(Clone, Default)]
pub(super) struct Sections {
    pub(super) text: Option<Section>,
    pub(super) got: Option<Range<u64>>,
    pub(super) eh_frame: Option<Section>,
    pub(super) eh_frame_hdr: Option<Section>,
}

/// A part of a module's file.
#[derive(Clone, Default)]
pub(super) struct Section {
    image: Arc<Image>,
    place: Range<usize>,
    /// Its addresses, as in the file.
    pub(super) addresses: Range<u64>,
}

/// A module's file.
enum Image {
    File(Mmap),
    /// The kernel's module, which has none.
    Memory(Vec<u8>),
}

impl Default for Image {
    fn default() -> Image {
        Image::Memory(Vec::new())
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Image::File(map) => map,
            Image::Memory(bytes) => bytes,
        }
    }
}

impl Deref for Section {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.image.get(self.place.clone()).unwrap_or_default()
    }
}

/// The kernel's own module, which holds the clocks.
const VDSO: &str = "[vdso]";

/// See the module. Places are stable, and the newest of two modules at one
/// address counts.
#[derive(Debug, Default)]
pub(super) struct Modules(Vec<Arc<Module>>);

impl Modules {
    pub(super) fn of_this_process() -> Modules {
        let mut modules = Modules::default();
        modules.refresh();
        modules
    }

    /// Adds what was loaded since. `true`: something was.
    pub(super) fn refresh(&mut self) -> bool {
        let before = self.0.len();
        // What cannot be read now may be at the next look.
        let maps = sampler::maps().unwrap_or_default();
        for mapping in maps.lines().filter_map(Mapping::parse) {
            let is_known = |module: &Arc<Module>| {
                module.path == mapping.path && module.range.contains(&mapping.range.start)
            };
            if !self.0.iter().any(is_known) {
                self.0.extend(Module::read(&mapping).map(Arc::new));
            }
        }
        self.0.len() > before
    }

    pub(super) fn list(&self) -> &[Arc<Module>] {
        &self.0
    }

    /// The place of the module at an address.
    pub(super) fn place(&self, address: u64) -> Option<usize> {
        let mut newest_first = self.0.iter().rev();
        let from_end = newest_first.position(|module| module.range.contains(&address))?;
        Some(self.0.len() - 1 - from_end)
    }
}

/// An executable mapping of a file.
struct Mapping<'a> {
    range: Range<u64>,
    offset: u64,
    path: &'a str,
}

impl Mapping<'_> {
    /// A line of /proc/self/maps: range, permissions, offset, device, inode, path.
    fn parse(line: &str) -> Option<Mapping<'_>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let is_code = words.next()?.as_bytes().get(2) == Some(&b'x');
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let inode = words.nth(1)?;
        let path = line[line.find(inode)?..].find(['/', '[']);
        let path = &line[line.find(inode)? + path?..];
        let hex = |text| u64::from_str_radix(text, 16).ok();
        (is_code && (path.starts_with('/') || path == VDSO)).then_some(Mapping {
            range: hex(start)?..hex(end)?,
            offset,
            path,
        })
    }
}

impl Module {
    /// `None`: no file, or none that can be read.
    fn read(mapping: &Mapping<'_>) -> Option<Module> {
        let image = match mapping.path {
            VDSO => {
                let len = mapping.range.end.checked_sub(mapping.range.start)?;
                let mut bytes = vec![0; usize::try_from(len).ok()?];
                let read = read_memory(mapping.range.start, &mut bytes);
                bytes.truncate(read);
                Image::Memory(bytes)
            }
            path => {
                let file = File::open(openable(path)).ok()?;
                // SAFETY: a file that is being executed cannot be written, and
                // libraries are replaced, not written into: who writes into one
                // breaks the process that runs it, with or without us.
                Image::File(unsafe { Mmap::map(&file) }.ok()?)
            }
        };
        let image = Arc::new(image);
        let object = object::File::parse(&**image).ok()?;
        // The segment that the mapping is of says which address its start has.
        let vaddr = object.segments().find_map(|segment| {
            let (offset, size) = segment.file_range();
            let overlaps = offset < mapping.offset + (mapping.range.end - mapping.range.start)
                && mapping.offset < offset + size;
            let is_code = matches!(segment.flags(), object::SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
            let start = segment.address().wrapping_add(mapping.offset);
            (overlaps && is_code).then(|| start.wrapping_sub(offset))
        })?;
        let section = |name: &str| {
            let section = object.section_by_name(name)?;
            let (offset, size) = section.file_range()?;
            let start = usize::try_from(offset).ok()?;
            Some(Section {
                image: Arc::clone(&image),
                place: start..start.checked_add(usize::try_from(size).ok()?)?,
                addresses: section.address()..section.address().checked_add(section.size())?,
            })
        };
        let sections = Sections {
            text: section(".text"),
            got: section(".got").map(|section| section.addresses),
            eh_frame: section(".eh_frame"),
            eh_frame_hdr: section(".eh_frame_hdr"),
        };
        Some(Module {
            path: mapping.path.to_owned(),
            build_id: object.build_id().ok()?.unwrap_or_default().to_vec(),
            range: mapping.range.clone(),
            file_offset: mapping.offset,
            bias: mapping.range.start.wrapping_sub(vaddr),
            sections,
        })
    }

    /// Its file, as the kernel names it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        let name = Path::new(&self.path).file_name();
        let name = name.and_then(|name| name.to_str()).unwrap_or(&self.path);
        name.trim_matches(['[', ']'])
    }

    /// What tells its build from all others; empty if it has none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// The addresses of its code in this process.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Where its code begins in the file.
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// What [`Module::to_file`] takes away.
    pub fn bias(&self) -> u64 {
        self.bias
    }

    /// An address of this process, as in the file.
    pub fn to_file(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }

    pub(super) fn sections(&self) -> &Sections {
        &self.sections
    }

    /// The bytes of a module that lies in no file.
    pub(super) fn memory(&self) -> Option<&[u8]> {
        let section = self.sections.eh_frame.as_ref();
        match section.map(|section| &*section.image) {
            Some(Image::Memory(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x?}", self.path, self.range)
    }
}

/// The program itself, also when its file was replaced since it started.
pub(super) fn openable(path: &str) -> &str {
    let own = std::fs::read_link("/proc/self/exe");
    match own {
        Ok(own) if own.to_str() == Some(path) => "/proc/self/exe",
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_those_of_code() {
        let parse =
            |line| Mapping::parse(line).map(|m| (m.range.start, m.offset, m.path.to_owned()));
        let line =
            "7f12a000-7f12f000 r-xp 00026000 fe:00 1234                       /usr/lib/a b.so";
        assert_eq!(
            parse(line),
            Some((0x7f12_a000, 0x26000, "/usr/lib/a b.so".to_owned()))
        );
        let line = "7ffc000-7ffe000 r-xp 00000000 00:00 0                          [vdso]";
        assert_eq!(parse(line), Some((0x7ff_c000, 0, VDSO.to_owned())));
        for other in [
            "7f12a000-7f12f000 r--p 00026000 fe:00 1234      /usr/lib/a.so",
            "7f12a000-7f12f000 rwxp 00000000 00:00 0 ",
            "7f12a000-7f12f000 r-xp 00000000 00:00 0         [stack]",
            "",
            "7f12a000",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn this_program_is_a_module_and_so_is_the_kernels() {
        let mut modules = Modules::of_this_process();
        let here = Mapping::parse as *const () as usize as u64;
        let place = modules.place(here).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(Path::new(modules.list()[place].path()), own);
        assert!(modules.list()[place].sections().eh_frame.is_some());
        let vdso = modules.list().iter().find(|m| m.path() == VDSO).unwrap();
        assert!(vdso.sections().eh_frame.is_some() && vdso.memory().is_some());
        assert!(!modules.refresh(), "nothing was loaded");
        assert_eq!(modules.place(here), Some(place));
    }
}
