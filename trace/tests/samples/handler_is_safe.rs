//! While SIGPROF's handler runs, and only then, a thread of this program has
//! SIGPROF blocked. So the allocator and the locks of this test know where they
//! are called from. Seen are allocations of Rust code, and locks by `pthread_mutex_lock`;
//! of locks without that name (the standard library's), that no handler waits
//! for one that is held here.

use crate::collected::{Collected, turn};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The system's allocator, which ends the program when a handler calls it.
struct NotInHandlers;

#[global_allocator]
static ALLOCATOR: NotInHandlers = NotInHandlers;

static WATCHED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn refuse_in_handler(what: &str) {
    if !WATCHED.load(Ordering::Relaxed) {
        return;
    }
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: asks for the thread's mask; a set of zeros is valid.
    let blocked = unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        libc::sigismember(&mask, libc::SIGPROF) == 1
    };
    if blocked {
        let line = what.as_bytes();
        // SAFETY: bytes that live here.
        unsafe {
            libc::write(2, line.as_ptr().cast(), line.len());
            libc::abort();
        }
    }
}

// SAFETY: the system's allocator does all.
unsafe impl GlobalAlloc for NotInHandlers {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        refuse_in_handler("a handler allocates\n");
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        refuse_in_handler("a handler frees\n");
        // SAFETY: as the caller says.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Takes the place of the C library's, for all of this program that is linked to it by name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> libc::c_int {
    refuse_in_handler("a handler locks\n");
    // SAFETY: trylock is the C library's own; the mutex is the caller's.
    while unsafe { libc::pthread_mutex_trylock(mutex) } != 0 {
        std::thread::yield_now();
    }
    0
}

/// The lock that is held here would never be had by a handler on this thread.
fn hammer(lock: &Mutex<Vec<String>>, until: Instant) -> u64 {
    let mut rounds = 0;
    while Instant::now() < until {
        let mut held = lock.lock().unwrap();
        for n in 0..64 {
            held.push(n.to_string());
        }
        held.clear();
        held.shrink_to_fit();
        drop(held);
        // The C library's locks, of its loader and its streams.
        // SAFETY: the callback reads nothing; a null stream means all.
        unsafe {
            libc::dl_iterate_phdr(Some(no_module), std::ptr::null_mut());
            libc::fflush(std::ptr::null_mut());
        }
        rounds += 1;
    }
    rounds
}

unsafe extern "C" fn no_module(
    _info: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut libc::c_void,
) -> libc::c_int {
    1
}

#[test]
fn the_handler_neither_allocates_nor_waits_for_a_lock() {
    let _turn = turn();
    WATCHED.store(true, Ordering::Relaxed);
    let (sampler, collected) = Collected::start(999);
    let lock = Arc::new(Mutex::new(Vec::new()));
    let until = Instant::now() + Duration::from_secs(3);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || hammer(&lock, until))
        })
        .collect();
    // A handler that waits for what its own thread holds would wait for ever.
    let rounds: Vec<u64> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let counts = sampler.stop();
    WATCHED.store(false, Ordering::Relaxed);
    println!(
        "{rounds:?} rounds, {counts:?}, {} calls watched",
        ALLOCATIONS.load(Ordering::Relaxed)
    );
    assert!(rounds.iter().all(|rounds| *rounds > 0));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > 1000);
    let in_allocator = |name: &String| name.contains("malloc") || name.contains("free");
    let inside = collected.take();
    let inside = inside
        .iter()
        .filter(|kept| kept.stack.iter().any(in_allocator));
    assert!(
        inside.count() > 0,
        "no sample was taken within the allocator"
    );
}
