//! From samples to folded stacks: how much CPU time went into which chain of
//! functions. What flame graphs are drawn of.

mod filter;

pub use filter::{Filter, FilterError};

use crate::timeline::{CpuSample, Timeline, TrackOf};
use filter::{Lack, Selection};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// CPU time in nanoseconds by stack: process, thread and functions, the
/// outermost first, joined by semicolons.
pub fn folded(timeline: &Timeline, filter: &Filter) -> Result<BTreeMap<String, u64>, FilterError> {
    let names = Names::of(timeline);
    let selection = filter.resolve(timeline)?;
    let mut folded = BTreeMap::new();
    let mut last_lack = None;
    for sample in &timeline.samples {
        let (process, thread) = names.of_sample(sample);
        if let Some(lack) = selection.lack(sample, process, thread) {
            last_lack = last_lack.max(Some(lack));
            continue;
        }
        let mut stack = format!("{};{}", part(process), part(thread));
        if !sample.is_whole {
            stack += ";[not known from where]";
        }
        for function in sample.stack.iter() {
            stack.push(';');
            stack += &part(function);
        }
        let weight: &mut u64 = folded.entry(stack).or_default();
        *weight = weight.saturating_add(sample.weight);
    }
    match last_lack {
        _ if !folded.is_empty() => Ok(folded),
        None => Err(FilterError::NoSamples),
        Some(lack) => Err(nothing_left(&timeline.samples, &names, &selection, lack)),
    }
}

/// The filter that no sample got beyond, and what there is of what it asks for.
fn nothing_left(
    samples: &[CpuSample],
    names: &Names<'_>,
    selection: &Selection<'_>,
    lack: Lack,
) -> FilterError {
    // Those that the filters before it left.
    let left = samples.iter().filter(|sample| {
        let (process, thread) = names.of_sample(sample);
        selection.lack(sample, process, thread) == Some(lack)
    });
    let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    let there = match lack {
        Lack::Process => list(left.map(|sample| names.of_sample(sample).0).collect()),
        Lack::Thread => list(left.map(|sample| names.of_sample(sample).1).collect()),
        Lack::Time => {
            let seconds = left.map(|sample| selection.seconds(sample.time));
            let (first, last) = seconds.fold((f64::INFINITY, 0.0_f64), |(first, last), at| {
                (first.min(at), last.max(at))
            });
            format!("some from {first} s to {last} s")
        }
        Lack::Inside | Lack::During => format!("others ({})", left.count()),
    };
    let missed = selection.wanted(lack);
    FilterError::NothingLeft { missed, there }
}

/// Semicolons part functions, and the ends of lines stacks.
fn part(name: &str) -> String {
    match name.is_empty() {
        true => "?".to_owned(),
        false => name.replace(';', ",").replace(char::is_control, " "),
    }
}

/// What processes and threads are called.
struct Names<'t> {
    processes: HashMap<i32, &'t str>,
    threads: HashMap<(i32, i64), &'t str>,
}

impl<'t> Names<'t> {
    fn of(timeline: &'t Timeline) -> Names<'t> {
        let mut processes = HashMap::new();
        // Sampled threads that record nothing have no track.
        let sampled = timeline.thread_names.iter();
        let mut threads: HashMap<_, _> = sampled.map(|(id, name)| (*id, name.as_str())).collect();
        for track in timeline.tracks.values() {
            match track.of {
                TrackOf::Process { pid, .. } => {
                    processes.insert(pid, track.name.as_str());
                }
                TrackOf::Thread { pid, tid } => {
                    threads.insert((pid, tid), track.name.as_str());
                }
                _ => {}
            }
        }
        Names { processes, threads }
    }

    fn of_sample(&self, sample: &CpuSample) -> (&'t str, &'t str) {
        let process = self.processes.get(&sample.pid);
        let thread = self.threads.get(&(sample.pid, sample.tid));
        let or_unnamed = |name: Option<&&'t str>| name.copied().unwrap_or("?");
        (or_unnamed(process), or_unnamed(thread))
    }
}
