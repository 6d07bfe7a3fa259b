use crate::burn::{ten_parts, thread_cpu};
use crate::collected::{Collected, turn};
use nano_trace::SampleRate;
use nano_trace::sampler::Sampler;
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn burn_for(cpu: Duration) -> u32 {
    let begun = thread_cpu();
    while thread_cpu() - begun < cpu {
        ten_parts();
    }
    nix::unistd::gettid().as_raw() as u32
}

#[test]
fn threads_that_start_and_end_meanwhile_are_sampled() {
    let _turn = turn();
    let (sampler, collected) = Collected::start(250);
    let mut seen = BTreeSet::new();
    for _ in 0..12 {
        let threads: Vec<_> = (0..2)
            .map(|_| std::thread::spawn(|| burn_for(Duration::from_millis(250))))
            .collect();
        seen.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    }
    sampler.stop();
    let sampled: BTreeSet<u32> = collected.take().iter().map(|kept| kept.tid).collect();
    let missed: Vec<_> = seen.difference(&sampled).collect();
    assert!(missed.is_empty(), "{missed:?} of {seen:?}");
}

#[test]
fn sleepers_get_no_samples_and_sleep_as_long_as_they_want() {
    let _turn = turn();
    let (sampler, collected) = Collected::start(999);
    let (tell, told) = mpsc::channel();
    let (end, wait) = mpsc::channel::<()>();
    let sleeper = std::thread::spawn(move || {
        tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
        // The raw call, which a signal would end early, with EINTR.
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 400_000_000,
        };
        let begun = Instant::now();
        // SAFETY: a time that lives here.
        let slept = unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
        assert_eq!(slept, 0, "{}", std::io::Error::last_os_error());
        assert!(begun.elapsed() >= Duration::from_millis(400));
        let _ = wait.recv();
    });
    let tid = told.recv().unwrap();
    // Somebody works beside it.
    std::thread::spawn(|| burn_for(Duration::from_millis(500)))
        .join()
        .unwrap();
    collected.wait_passes(3);
    drop(end);
    sleeper.join().unwrap();
    sampler.stop();
    let of_sleeper = collected.take().into_iter().filter(|kept| kept.tid == tid);
    let of_sleeper: Vec<_> = of_sleeper.collect();
    // One, if starting and ending took it a whole period.
    assert!(of_sleeper.len() <= 1, "{of_sleeper:?}");
}

fn timers_and_files() -> (usize, usize) {
    let timers = std::fs::read_to_string("/proc/self/timers").unwrap();
    let timers = timers
        .lines()
        .filter(|line| line.starts_with("ID:"))
        .count();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (timers, files)
}

#[test]
fn nothing_is_left_of_two_hundred_rounds() {
    let _turn = turn();
    let (end, wait) = mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        while wait.try_recv() == Err(mpsc::TryRecvError::Empty) {
            ten_parts();
        }
    });
    let (sampler, collected) = Collected::start(999);
    collected.wait_passes(2);
    assert!(timers_and_files().0 > 0, "no timer of ours is seen");
    sampler.stop();
    let before = timers_and_files();
    assert_eq!(before.0, 0);
    for _ in 0..200 {
        let (sampler, collected) = Collected::start(999);
        collected.wait_passes(1);
        sampler.stop();
    }
    assert_eq!(timers_and_files(), before);
    drop(end);
    busy.join().unwrap();
    nano_trace::sampler::check_integrity().unwrap();
}

#[test]
fn a_wish_to_end_is_not_waited_for_and_can_be_taken_back() {
    let _turn = turn();
    let (end, wait) = mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        while wait.try_recv() == Err(mpsc::TryRecvError::Empty) {
            ten_parts();
        }
    });
    let mut went_on = 0;
    for _ in 0..30 {
        let (sampler, collected) = Collected::start(999);
        sampler.end_soon();
        if sampler.go_on() {
            went_on += 1;
            collected.wait_passes(2);
            assert!(!sampler.has_ended());
            sampler.end_soon();
        }
        while !sampler.has_ended() {
            std::thread::yield_now();
        }
        assert!(!sampler.go_on(), "it has ended");
        assert_eq!(timers_and_files().0, 0);
    }
    println!("{went_on} of 30 went on");
    assert!(went_on > 0);
    drop(end);
    busy.join().unwrap();
}

#[test]
fn where_the_signal_is_blocked_nothing_is_sampled_and_that_is_said() {
    let _turn = turn();
    let blocked = std::thread::spawn(|| {
        // SAFETY: a mask of this thread, which ends here.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut mask, libc::SIGPROF);
            libc::pthread_sigmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut());
        }
        Sampler::start(SampleRate::DEFAULT, Collected::default()).map(drop)
    });
    let error = blocked.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("blocked"), "{error}");
    // It leaves the place free.
    Collected::start(99).0.stop();
}

#[test]
fn a_second_sampler_is_refused_and_children_live() {
    let _turn = turn();
    let (sampler, collected) = Collected::start(999);
    let second = Sampler::start(SampleRate::DEFAULT, Collected::default());
    assert!(second.unwrap_err().to_string().contains("already"));
    // Children begin by a copy of a thread that has a timer.
    for _ in 0..20 {
        ten_parts();
        let status = std::process::Command::new("/bin/true").status().unwrap();
        assert!(status.success(), "{status}");
    }
    let panicked = std::thread::spawn(|| {
        burn_for(Duration::from_millis(50));
        std::panic::resume_unwind(Box::new(()));
    });
    panicked.join().unwrap_err();
    collected.wait_passes(1);
    sampler.stop();
}
