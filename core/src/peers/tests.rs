use super::*;
use nix::sys::eventfd::EventFd;
use nix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("the thread's own clock").into()
}

#[test]
fn a_connection_that_cannot_be_accepted_does_not_keep_the_loop_busy() {
    // No listener: it is readable for ever, and each accept fails.
    let (mut knocker, no_listener) = UnixStream::pair().expect("socketpair");
    knocker.write_all(b"knock").expect("a socket");
    let endpoint = Endpoint::Listener(no_listener.into());
    let mut peers = Peers::new(endpoint, 1, 1).expect("a socket");
    let interrupt = EventFd::new().expect("eventfd");
    let begun = Instant::now();
    let spent = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(ACCEPT_PAUSE * 2);
            interrupt.write(1).expect("eventfd");
        });
        let before = cpu_time();
        peers
            .wait(WaitFor::Anybody, interrupt.as_fd())
            .expect("it goes on without the listener");
        cpu_time() - before
    });
    assert!(
        begun.elapsed() >= ACCEPT_PAUSE * 2,
        "only the interrupt ends it"
    );
    assert!(spent < Duration::from_millis(20), "it turned for {spent:?}");
    assert!(peers.accept_after.is_some());
}
