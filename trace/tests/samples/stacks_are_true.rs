use crate::burn::{ten_parts, thread_cpu};
use crate::collected::{Collected, Kept, turn};
use nano_trace::SampleRate;
use nano_trace::symbols::StackEnd;
use std::sync::mpsc;
use std::time::Duration;

fn weight<'a>(kept: impl Iterator<Item = &'a Kept>) -> f64 {
    kept.map(|kept| kept.weight_ns as f64).sum()
}

/// One thread that burns `cpu` of its time, sampled.
fn burn(hz: u32, cpu: Duration) -> (Vec<Kept>, Duration) {
    let (sampler, collected) = Collected::start(hz);
    let thread = std::thread::Builder::new().name("burner".to_owned());
    let body = move || {
        let begun = thread_cpu();
        while thread_cpu() - begun < cpu {
            ten_parts();
        }
        thread_cpu()
    };
    let used = thread.spawn(body).unwrap().join().unwrap();
    let counts = sampler.stop();
    assert_eq!((counts.dropped, counts.missed_threads), (0, 0));
    nano_trace::sampler::check_integrity().unwrap();
    let kept = collected.take();
    assert_eq!(counts.taken as usize, kept.len());
    let burner = kept.into_iter().filter(|kept| kept.thread == "burner");
    (burner.collect(), used)
}

#[test]
fn a_function_that_takes_seventy_percent_shows_seventy() {
    let _turn = turn();
    let (kept, used) = burn(999, Duration::from_secs(6));
    let all = weight(kept.iter());
    let seven = weight(kept.iter().filter(|kept| kept.is_in("seven_parts")));
    let three = weight(kept.iter().filter(|kept| kept.is_in("three_parts")));
    println!(
        "{} samples; {:.1} % in seven_parts, {:.1} % in three_parts",
        kept.len(),
        100.0 * seven / all,
        100.0 * three / all
    );
    assert!(kept.len() >= 500, "{}", kept.len());
    assert!((0.65..=0.75).contains(&(seven / all)), "{}", seven / all);
    assert!((0.25..=0.35).contains(&(three / all)), "{}", three / all);
    // Weights are CPU time: all of it, but for the moment before the thread was found.
    let share = all / used.as_nanos() as f64;
    println!(
        "{:.1} % of the thread's CPU time is in the samples",
        100.0 * share
    );
    assert!((0.9..=1.02).contains(&share), "{share}");
}

#[test]
fn stacks_reach_the_threads_start() {
    let _turn = turn();
    let (kept, _) = burn(999, Duration::from_secs(2));
    // The C library's part below has names only where its symbols are installed.
    let whole = |kept: &&Kept| kept.end == StackEnd::Root && kept.is_in("thread_start");
    let count = kept.iter().filter(whole).count();
    println!("{count} of {} stacks are whole", kept.len());
    for odd in kept.iter().filter(|kept| !whole(kept)).take(3) {
        println!("{odd:#?}");
    }
    assert!(kept.len() >= 100, "{}", kept.len());
    assert!(count as f64 > 0.95 * kept.len() as f64);
}

#[test]
fn a_sampler_changes_its_rate_and_weights_stay_right() {
    let _turn = turn();
    let (mut sampler, collected) = Collected::start(10);
    let (tell, told) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let burner = std::thread::spawn(move || {
        let burn_until = |cpu| {
            while thread_cpu() < cpu {
                ten_parts();
            }
        };
        burn_until(Duration::from_secs(1));
        tell.send(()).unwrap();
        wait.recv().unwrap();
        burn_until(Duration::from_secs(3));
        (nix::unistd::gettid().as_raw() as u32, thread_cpu())
    });
    told.recv().unwrap();
    let fast = SampleRate::try_from(200).unwrap();
    sampler.set_rate(fast);
    collected.wait_passes(2);
    go_on.send(()).unwrap();
    let (tid, used) = burner.join().unwrap();
    sampler.stop();
    let mut kept = collected.take();
    kept.retain(|kept| kept.tid == tid);
    let share = weight(kept.iter()) / used.as_nanos() as f64;
    println!(
        "{} samples, {:.1} % of the CPU time",
        kept.len(),
        share * 100.0
    );
    // Ten of the first second, 400 of the other two.
    assert!((250..=420).contains(&kept.len()), "{}", kept.len());
    assert!((0.85..=1.05).contains(&share), "{share}");
}
