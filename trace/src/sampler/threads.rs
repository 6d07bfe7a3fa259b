//! The threads of this process, as the kernel lists them.

use std::os::unix::fs::MetadataExt;
use std::{fs, io};

/// Threads that exist, by number. One may be lacking, where another ends while
/// the list is read.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn list() -> io::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(threads)
}

/// How many exist: a fraction of what a list costs. The kernel counts them as
/// directories in one, which has two links more.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn count() -> io::Result<usize> {
    let links = fs::metadata("/proc/self/task")?.nlink();
    Ok(usize::try_from(links.saturating_sub(2)).unwrap_or(usize::MAX))
}

/// Whether a thread exists.
pub(crate) fn exists(tid: u32) -> bool {
    // SAFETY: takes numbers; signal 0 is none.
    let told = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) };
    told == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// A thread's name of at most 15 bytes; empty if it is gone.
pub(crate) fn name(tid: u32) -> String {
    let name = fs::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// What lies where in this process, as the kernel says it, with `?` for what is
/// no text in paths.
pub(crate) fn maps() -> io::Result<String> {
    let maps = fs::read("/proc/self/maps")?;
    Ok(String::from_utf8_lossy(&maps).into_owned())
}

/// Where the stack of the process's first thread ends; the others' ends are
/// where their control blocks lie.
pub(crate) fn first_stack_top() -> Option<u64> {
    let maps = maps().ok()?;
    let stack = maps.lines().find(|line| line.ends_with("[stack]"))?;
    let (_, end) = stack.split_whitespace().next()?.split_once('-')?;
    u64::from_str_radix(end, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_listed_with_its_name_while_it_lives() {
        let (tell, told) = std::sync::mpsc::channel();
        let (_end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("a name too long for it".to_owned());
        let thread = thread.spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            let _ = wait.recv();
        });
        let tid = told.recv().unwrap();
        assert!(list().unwrap().contains(&tid) && exists(tid));
        // Other tests' threads come and go.
        while count().unwrap() != list().unwrap().len() {
            std::thread::yield_now();
        }
        assert_eq!(name(tid), "a name too long");
        drop(_end);
        thread.unwrap().join().unwrap();
        // The kernel lets go of a thread a moment after it was joined.
        while exists(tid) {
            std::thread::yield_now();
        }
        assert!(!list().unwrap().contains(&tid));
        assert_eq!(name(tid), "");
    }

    #[test]
    fn the_first_stack_ends_above_its_arguments() {
        let top = first_stack_top().unwrap();
        assert!(top.is_multiple_of(4096), "{top:#x}");
    }
}
