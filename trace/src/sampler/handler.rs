//! The signal handler: what runs on a sampled thread, in the middle of anything.
//!
//! Safe there by construction: it reads atomics, calls the kernel (`gettid`,
//! `getpid`, `process_vm_readv`, `futex`), reads a clock without a lock and
//! writes into memory that was mapped before. It allocates nothing, locks
//! nothing, and leaves unwinding to the sampler's thread. The kernel reads the
//! stack for it, which fails where a load would crash.
//!
//! It runs on the stack of the thread, not on its alternative one
//! (`SA_ONSTACK`): the standard library makes those just large enough for a
//! report of an overflow, and with AVX-512 or AMX the saved registers alone
//! fill them. `SA_RESTART` lets the kernel go on with calls that it interrupts.
//! Those that it never goes on with return EINTR: `poll`, `epoll_wait`,
//! `select`, `nanosleep`, waits for signals or semaphores with a timeout, and
//! sockets with one. As a thread's CPU clock stands still while it sleeps, that
//! happens only on its way into a sleep.

use super::record::RawSample;
use super::slots::{self, Slot};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What timers send.
pub(crate) const SIGNAL: libc::c_int = libc::SIGPROF;

/// 1: the sampler should come. A futex.
static WAKE: AtomicU32 = AtomicU32::new(0);

/// Installs the handler, for as long as the process lives: what a deleted timer
/// sent may still arrive, and would end a process without one.
///
/// # Errors
/// When another handler is there, or the signal is blocked: threads inherit that.
pub(crate) fn install() -> io::Result<()> {
    let handler = on_signal as *const () as usize;
    // SAFETY: plain C structs, for which zeros are valid; the handler is safe
    // to run at any moment, see the module.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        if libc::sigismember(&mask, SIGNAL) == 1 {
            return Err(io::Error::other("it is blocked"));
        }
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(SIGNAL, ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let free = [libc::SIG_DFL, libc::SIG_IGN, handler];
        if !free.contains(&before.sa_sigaction) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        if libc::sigaction(SIGNAL, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Reads memory of this process as far as it is readable. Async-signal-safe.
///
/// # Safety
/// `to` can be written for `len` bytes.
#[inline]
unsafe fn read_memory_raw(address: u64, to: *mut u8, len: usize) -> usize {
    let local = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: the kernel writes at most `len` bytes to `to`, and checks the rest.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Reads memory of this process as far as it is readable; how many bytes that were.
pub(crate) fn read_memory(address: u64, to: &mut [u8]) -> usize {
    // SAFETY: a slice that can be written.
    unsafe { read_memory_raw(address, to.as_mut_ptr(), to.len()) }
}

/// What the kernel says of a timer's signal (`siginfo_t` of `SI_TIMER`): what
/// depends on the code begins where a pointer may.
#[repr(C)]
struct TimerInfo {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    _gap: libc::c_int,
    timer: libc::c_int,
    overruns: libc::c_int,
    value: libc::sigval,
}

const SI_TIMER: libc::c_int = -2;

extern "C" fn on_signal(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: errno lives as long as the thread. The kernel gives a handler
    // with SA_SIGINFO both structs, of which the first is larger than ours.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let info = &*info.cast::<TimerInfo>();
        if info.code == SI_TIMER
            && let Some(slot) = slots::all().get(info.value.sival_ptr as usize)
            && slot.tid() == libc::gettid() as u32
        {
            take_down(slot, info.overruns, &*context.cast::<libc::ucontext_t>());
        }
        *errno = before;
    }
}

/// Writes a record of the thread that runs this.
#[inline]
fn take_down(slot: &Slot, overruns: libc::c_int, context: &libc::ucontext_t) {
    let Some(room) = slot.room() else { return };
    let (ip, registers) = registers(context);
    let sp = registers[RawSample::SP];
    // Libraries of threads put a thread's control block above its stack.
    // SAFETY: asks nothing of its caller.
    let own_top = || unsafe { libc::pthread_self() as u64 };
    let top = match slot.stack_top.load(Ordering::Relaxed) {
        0 => own_top(),
        top => top,
    };
    // Beyond, or on some other stack: the kernel reads what is there.
    let depth = top.checked_sub(sp).unwrap_or(u64::MAX);
    let len = usize::try_from(depth).map_or(RawSample::STACK_BYTES, |depth| {
        depth.min(RawSample::STACK_BYTES)
    });
    let period_ns = slot.period_ns.load(Ordering::Relaxed);
    let record = room.record;
    // SAFETY: the record is ours until it is published, and `stack` has room.
    unsafe {
        let stack = (&raw mut (*record).stack).cast::<u8>();
        let read = read_memory_raw(sp, stack, len);
        (*record).time_ns = now();
        (*record).weight_ns = period_ns.saturating_mul(1 + overruns.max(0) as u64);
        (*record).len = read as u64;
        (*record).ip = ip;
        (*record).registers = registers;
    }
    if room.publish() {
        wake();
    }
}

/// Whether threads' registers are known here, and the way up from them.
pub(crate) const IS_SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Where the thread was, and its registers in the order of [`RawSample`].
#[cfg(target_arch = "x86_64")]
#[inline]
fn registers(context: &libc::ucontext_t) -> (u64, [u64; 16]) {
    use libc::{
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP,
        REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP,
    };
    let all = &context.uc_mcontext.gregs;
    let in_order = [
        REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8, REG_R9,
        REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    ]
    .map(|register| all[register as usize] as u64);
    (all[REG_RIP as usize] as u64, in_order)
}

#[cfg(not(target_arch = "x86_64"))]
fn registers(_context: &libc::ucontext_t) -> (u64, [u64; 16]) {
    (0, [0; 16])
}

/// CLOCK_BOOTTIME. Without nix, whose errors are another thing to look through.
#[inline]
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place that lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64
}

/// Wakes the sampler. Async-signal-safe.
pub(crate) fn wake() {
    WAKE.store(1, Ordering::Release);
    // SAFETY: a static's address; the call reads nothing else.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            WAKE.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}

/// Sleeps until [`wake`] was called, or this long.
pub(crate) fn sleep(at_most: Duration) {
    let timeout = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    if WAKE.swap(0, Ordering::Acquire) == 0 {
        // SAFETY: a static's address, and a timeout that lives here.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                WAKE.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                0,
                &timeout,
            );
        }
        WAKE.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        let word = 0x0123_4567_89ab_cdef_u64;
        let mut to = [0; 8];
        assert_eq!(read_memory(&raw const word as u64, &mut to), 8);
        assert_eq!(u64::from_ne_bytes(to), word);
        for nowhere in [0, 16, u64::MAX - 8, 1 << 62] {
            assert_eq!(read_memory(nowhere, &mut to), 0, "{nowhere:#x}");
        }
    }

    #[test]
    fn what_the_kernel_says_lies_where_libc_finds_it() {
        let mut info = TimerInfo {
            signal: SIGNAL,
            errno: 0,
            code: SI_TIMER,
            _gap: 0,
            timer: 5,
            overruns: 6,
            value: libc::sigval {
                sival_ptr: ptr::without_provenance_mut(7),
            },
        };
        let theirs = (&raw mut info).cast::<libc::siginfo_t>();
        // SAFETY: reads no more than what is there.
        let (code, value) = unsafe { ((*theirs).si_code, (*theirs).si_value()) };
        assert_eq!((code, value.sival_ptr as usize), (libc::SI_TIMER, 7));
        // Two words before the value, in the kernel's `siginfo.h`.
        assert_eq!(std::mem::offset_of!(TimerInfo, overruns), 20);
        assert_eq!(std::mem::offset_of!(TimerInfo, value), 24);
    }

    /// A slot of this thread, of a place that is another one in each test; no
    /// sampler is in this program that would give it to others.
    struct Own(usize);

    impl Own {
        fn new(place: usize, stack_top: u64) -> Own {
            let own = nix::unistd::gettid().as_raw() as u32;
            let slot = &slots::all()[place];
            slot.period_ns.store(1_000, Ordering::Relaxed);
            assert!(slot.give(own, stack_top));
            Own(place)
        }

        fn slot(&self) -> &'static Slot {
            &slots::all()[self.0]
        }

        /// Calls the handler as the kernel does, of a thread that is at `sp`.
        fn fire(&self, code: libc::c_int, sp: u64) {
            let mut info = TimerInfo {
                signal: SIGNAL,
                errno: 0,
                code,
                _gap: 0,
                timer: 0,
                overruns: 2,
                value: libc::sigval {
                    sival_ptr: ptr::without_provenance_mut(self.0),
                },
            };
            // SAFETY: a plain C struct, for which zeros are valid.
            let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
            let registers = &mut context.uc_mcontext.gregs;
            registers[libc::REG_RSP as usize] = sp as i64;
            registers[libc::REG_RIP as usize] = 77;
            on_signal(
                SIGNAL,
                (&raw mut info).cast(),
                (&raw mut context).cast::<libc::c_void>(),
            );
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            self.slot().free();
        }
    }

    fn errno() -> *mut libc::c_int {
        // SAFETY: asks nothing of its caller.
        unsafe { libc::__errno_location() }
    }

    #[test]
    fn registers_and_stack_are_taken_down_and_errno_stays() {
        let stack: [u64; 64] = std::array::from_fn(|n| n as u64 + 100);
        let sp = stack.as_ptr() as u64;
        let own = Own::new(0, sp + 512);
        own.fire(SI_TIMER, sp);
        // A stack that cannot be read: the call of the handler fails.
        // SAFETY: this thread's.
        unsafe { *errno() = 0 };
        assert_eq!(read_memory(16, &mut [0; 8]), 0);
        // SAFETY: this thread's.
        assert_eq!(unsafe { *errno() }, libc::EFAULT);
        // SAFETY: this thread's.
        unsafe { *errno() = 77 };
        own.fire(SI_TIMER, 16);
        // SAFETY: this thread's.
        assert_eq!(unsafe { *errno() }, 77);
        let mut records = Vec::new();
        own.slot().drain(|raw| {
            let words = [raw.word(sp), raw.word(sp + 8 * 63), raw.word(sp + 512)];
            records.push((raw.ip, raw.weight_ns, raw.len, words));
            assert!(raw.time_ns > 0);
        });
        let readable = [Some(100), Some(163), None];
        let expected = [(77, 3_000, 512, readable), (77, 3_000, 0, [None; 3])];
        assert_eq!(records, expected);
    }

    #[test]
    fn what_is_not_of_this_threads_timer_is_ignored() {
        install().unwrap();
        install().unwrap();
        // SAFETY: a signal that is handled.
        assert_eq!(unsafe { libc::raise(SIGNAL) }, 0);
        std::thread::spawn(|| {
            let own = Own::new(1, 0);
            own.fire(libc::SI_USER, &raw const own as u64);
            assert!(own.slot().is_empty());
            // SAFETY: a signal that is handled.
            assert_eq!(unsafe { libc::raise(SIGNAL) }, 0);
            assert!(own.slot().is_empty());
            std::thread::scope(|scope| {
                scope.spawn(|| own.fire(SI_TIMER, &raw const own as u64));
            });
            assert!(own.slot().is_empty(), "another thread's");
            own.fire(SI_TIMER, &raw const own as u64);
            assert!(!own.slot().is_empty());
        })
        .join()
        .unwrap();
    }
}
