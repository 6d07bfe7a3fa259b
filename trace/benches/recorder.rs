//! What recording costs, beside two other recorders in the same run, and
//! whether the bars hold: `cargo bench --workspace --bench recorder`. Exits with
//! 1 if not.
//!
//! The unit is a slice with one integer argument, begun and ended; ten million
//! of them, all of which end up in a file that is then read again.
//!
//! **Ours.** A producer that does nothing else makes a slice in a few tens of
//! ns, and the writer needs longer to encode it and hand it to the file system:
//! flat out, a ring overflows sooner or later, and records are dropped and
//! counted, as they should be. A server does not do nothing else: it records
//! many slices in a step, and then computes. So everything here is recorded in
//! bursts that a ring holds, with a pause in which the writer catches up.
//! Producers' times are those of the bursts alone; the CPU time a slice is the
//! whole process's, writer and pauses included. All figures are medians over
//! bursts, so that a burst in which the system ran something else does not count.
//!
//! **perfetto-recorder.** It keeps all that it records in memory until the
//! program asks for the file, by design: its README gives the cost of a span
//! apart from that of the conversion, "once the application has finished". Its
//! three uses differ by what that memory costs:
//! - *as its own benchmark* (`examples/benchmark.rs`, whence the figure of its
//!   README): memory for all spans is reserved, they are recorded, and then the
//!   file is made of them. The memory is new to the process, as it is to whoever
//!   keeps ten million spans: pages are paid for as they are first written.
//! - *as its README's example*: nothing is reserved, the buffer grows.
//! - *warm, nothing kept*: memory for one burst is reserved, and given back with
//!   what is in it, so that the next burst gets the same warm pages. It shows
//!   the instructions alone, and is no use of the crate: no file comes of it.
//!
//! The bar is bound to the cheaper of the first two: both are documented, and
//! both end in a file, as ours does.

use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput, measurement::WallTime};
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;
use nano_trace::check::{OpenSlices, check};
use nano_trace::proto::{debug_annotation::Value, trace_packet::Data, track_event};
use nano_trace::read::{Source, Tail};
use nano_trace::{Event, ProcessTrace, Rings, SessionSpec, SessionState, SessionStatus};
use nix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Slices in a burst: 20,000 of a ring's 32,768 words.
const BURST: u64 = 4_000;
/// Arguments stay below this: two bytes in the file.
const ARGS: u64 = 1 << 14;

fn main() -> ExitCode {
    // `cargo test --benches` only tries out that everything runs.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let slices = if measured { 10_000_000 } else { 40_000 };

    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .sample_size(10)
        .configure_from_args();
    let mut group = criterion.benchmark_group("slice with one integer argument");
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(1));

    bench(
        &mut group,
        "nano-trace, off",
        &mut Ours { next: 0, on: false },
    );
    let off = median(
        (0..200)
            .map(|_| Ours { next: 0, on: false }.burst(100 * BURST))
            .collect(),
    );

    let dir = tempfile::tempdir().expect("a directory for the trace");
    start(dir.path());
    perfetto_recorder::start().expect("its feature `enable` is on");
    let mut ours = Ours { next: 0, on: true };
    bench(&mut group, "nano-trace, on", &mut ours);
    let file = dir.path().join("other.pftrace");
    bench(
        &mut group,
        "perfetto-recorder",
        &mut PerfettoRecorder::new(Use::OwnBenchmark, &file),
    );

    // The long runs, by turns, so that all see the same machine.
    let before = ours.next;
    let mut other = PerfettoRecorder::new(Use::OwnBenchmark, &file);
    let (mut on, mut theirs) = (LongRun::default(), LongRun::default());
    for _ in 0..(slices / KEPT).max(1) {
        on.go(&mut ours, KEPT.min(slices));
        theirs.go(&mut other, KEPT.min(slices));
    }
    let long_run = ours.next - before;

    nano_trace::finish();
    let status = status();
    assert_eq!(status.state, SessionState::Finished);
    let verified = verify(&status.file);

    // Last, because its collector is a thread that would run beside ours.
    fastrace::set_reporter(Discard, Config::default());
    bench(&mut group, "fastrace", &mut Fastrace);
    let fastrace = median(
        (0..if measured { 500 } else { 5 })
            .map(|_| Fastrace.burst(BURST))
            .collect(),
    );
    group.finish();

    let bursts = if measured { 250 } else { 5 };
    let sample =
        |recorder: &mut dyn Recorder| median((0..bursts).map(|_| recorder.burst(BURST)).collect());
    let readme = sample(&mut PerfettoRecorder::new(Use::Readme, &file));
    let warm = sample(&mut PerfettoRecorder::new(Use::WarmAndNothingKept, &file));
    let clock = sample(&mut ClockAlone);
    let (on, on_cpu) = on.figures();
    let (theirs, their_cpu) = theirs.figures();
    let bytes = status.bytes as f64 / ours.next as f64;
    println!("\nmedians of bursts of {BURST} slices; {long_run} slices in each long run");
    println!("{:<46}{:>10}   bar", "", "");
    let mut held = true;
    let mut row = |what: &str, value: f64, unit: &str, bar: Option<f64>| {
        let verdict = match bar {
            None => String::new(),
            Some(bar) if value <= bar => format!("<= {bar:.1}"),
            Some(bar) => {
                held = false;
                format!("<= {bar:.1}  MISSED")
            }
        };
        println!("{what:<46}{value:>10.2} {unit:<6} {verdict}");
    };
    row(
        "two readings of the clock, in every slice",
        clock,
        "ns",
        None,
    );
    row(
        "perfetto-recorder, as its own benchmark",
        theirs,
        "ns",
        None,
    );
    row("  as its README's example", readme, "ns", None);
    row("  warm, nothing kept", warm, "ns", None);
    row("fastrace", fastrace, "ns", None);
    let cheaper = theirs.min(readme);
    row("nano-trace, on", on, "ns", Some(cheaper / 2.0));
    row(
        "nano-trace, on, to perfetto-recorder",
        on / cheaper,
        "",
        Some(0.5),
    );
    row("nano-trace, off", off, "ns", Some(2.0));
    row("CPU a slice, file included (aim: 150)", on_cpu, "ns", None);
    row("  of perfetto-recorder", their_cpu, "ns", None);
    row("bytes a slice in the file", bytes, "B", Some(60.0));
    row("records dropped", status.drops as f64, "", Some(0.0));
    let missing = ours.next.abs_diff(verified.unwrap_or_else(|why| {
        println!("the file is broken: {why}");
        0
    }));
    row("slices missing in the file", missing as f64, "", Some(0.0));
    let (judged, broken) = validate(&status.file);
    row("slices seen by the validator", judged as f64, "", None);
    row("rules that they break", broken as f64, "", Some(0.0));
    if held || !measured {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Records bursts.
trait Recorder {
    /// Records so many slices; returns the producer's ns a slice.
    fn burst(&mut self, slices: u64) -> f64;
}

/// Many bursts, and what they cost the whole process.
#[derive(Default)]
struct LongRun {
    bursts: Vec<f64>,
    slices: u64,
    cpu: Duration,
}

impl LongRun {
    fn go(&mut self, recorder: &mut impl Recorder, slices: u64) {
        let start = cpu_time();
        for _ in 0..slices / BURST {
            self.bursts.push(recorder.burst(BURST));
        }
        self.cpu += cpu_time() - start;
        self.slices += slices;
    }

    /// Median ns of a slice, and mean ns of CPU time of a slice.
    fn figures(self) -> (f64, f64) {
        let cpu = self.cpu.as_nanos() as f64 / self.slices as f64;
        (median(self.bursts), cpu)
    }
}

fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, recorder: &mut impl Recorder) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut left = iterations;
            let mut total = 0.0;
            while left > 0 {
                let slices = left.min(BURST);
                total += recorder.burst(slices) * slices as f64;
                left -= slices;
            }
            Duration::from_nanos(total as u64)
        });
    });
}

fn timed(slices: u64, mut slice: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    for i in 0..slices {
        slice(i);
    }
    start.elapsed().as_nanos() as f64 / slices as f64
}

struct Ours {
    /// Number of the next slice.
    next: u64,
    on: bool,
}

impl Recorder for Ours {
    fn burst(&mut self, slices: u64) -> f64 {
        let first = self.next;
        let ns = timed(slices, |i| {
            drop(nano_trace::slice(
                Event::Detokenize,
                [black_box((first + i) % ARGS)],
            ));
        });
        self.next += slices;
        if self.on {
            assert!(nano_trace::flush(), "{:?}", status());
        }
        ns
    }
}

/// What no recorder with two times a slice can be faster than.
struct ClockAlone;

impl Recorder for ClockAlone {
    fn burst(&mut self, slices: u64) -> f64 {
        timed(slices, |_| {
            black_box(read_clock());
            black_box(read_clock());
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn read_clock() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read_clock() -> Instant {
    Instant::now()
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    OwnBenchmark,
    Readme,
    WarmAndNothingKept,
}

/// Spans that it keeps before the file is made of them: 60 MB, which an
/// allocator asks from the system and returns to it. (Ten million at once would
/// take 1.2 GB, and several times that while it converts them.)
const KEPT: u64 = 500_000;

struct PerfettoRecorder<'a> {
    used: Use,
    /// Slices that it keeps now.
    kept: u64,
    file: &'a Path,
}

impl PerfettoRecorder<'_> {
    fn new(used: Use, file: &Path) -> PerfettoRecorder<'_> {
        PerfettoRecorder {
            used,
            kept: 0,
            file,
        }
    }
}

impl Recorder for PerfettoRecorder<'_> {
    fn burst(&mut self, slices: u64) -> f64 {
        use perfetto_recorder::{
            EVENTS_PER_ARG, EVENTS_PER_SPAN, ThreadTraceData, TraceBuilder, current_thread_reserve,
        };
        let reserve = |slices: u64| {
            current_thread_reserve(slices as usize * (EVENTS_PER_SPAN + EVENTS_PER_ARG));
        };
        match self.used {
            Use::OwnBenchmark if self.kept == 0 => reserve(KEPT),
            Use::WarmAndNothingKept => reserve(slices),
            Use::OwnBenchmark | Use::Readme => {}
        }
        let ns = timed(slices, |i| {
            perfetto_recorder::scope!("forward", tokens = black_box(i % ARGS));
        });
        self.kept += slices;
        if self.used == Use::WarmAndNothingKept {
            drop(black_box(ThreadTraceData::take_current_thread()));
        } else if self.kept >= KEPT {
            self.kept = 0;
            TraceBuilder::new()
                .expect("it was started")
                .process_thread_data(&ThreadTraceData::take_current_thread())
                .write_to_file(self.file)
                .expect("room for the file");
        }
        ns
    }
}

impl Drop for PerfettoRecorder<'_> {
    fn drop(&mut self) {
        // What it keeps belongs to this use alone.
        drop(perfetto_recorder::ThreadTraceData::take_current_thread());
    }
}

struct Fastrace;

impl Recorder for Fastrace {
    fn burst(&mut self, slices: u64) -> f64 {
        let root = fastrace::Span::root("burst", SpanContext::random());
        let _parent = root.set_local_parent();
        timed(slices, |i| {
            // Its arguments are texts.
            let tokens = || ("tokens", black_box(i % ARGS).to_string());
            drop(LocalSpan::enter_with_local_parent("forward").with_property(tokens));
        })
    }
}

struct Discard;

impl Reporter for Discard {
    fn report(&mut self, _: Vec<SpanRecord>) {}
}

fn start(dir: &Path) {
    let rings = Rings::create().expect("memory for the rings");
    nano_trace::start(ProcessTrace {
        dir: dir.to_owned(),
        role: "single".to_owned(),
        run: 1,
        rings: rings.fd().try_clone_to_owned().expect("a descriptor"),
        facts: vec![],
        keep: None,
        sessions: vec![SessionSpec::new("auto".parse().expect("a name"), 16 << 30)],
    })
    .expect("nothing recorded before");
}

/// How the one session stands.
fn status() -> SessionStatus {
    nano_trace::sessions().pop().expect("it was started")
}

/// Counts the file's slices: each begins and ends before the next one, with
/// its own argument, and time never runs backwards. The first and the last are
/// not among them: they are of one that says when the session recorded.
fn verify(file: &Path) -> Result<u64, String> {
    let source = Source::File(file.to_owned());
    let mut packets = source.packets().map_err(|e| e.to_string())?;
    let (mut begun, mut ended, mut last) = (0, 0, 0);
    let mut recording = None;
    while let Some(packet) = packets.next_packet().map_err(|e| e.to_string())? {
        let packet = packet.content;
        let sequence = packet.trusted_packet_sequence_id();
        let (ns, Some(Data::TrackEvent(event))) = (packet.timestamp(), packet.data) else {
            continue;
        };
        if ns < last {
            return Err(format!("time runs backwards after slice {begun}"));
        }
        last = ns;
        if *recording.get_or_insert(sequence) == sequence {
            continue;
        }
        match event.r#type() {
            track_event::Type::SliceBegin => {
                let value = event
                    .debug_annotations
                    .first()
                    .and_then(|a| a.value.clone());
                if begun != ended || value != Some(Value::Uint(begun % ARGS)) {
                    return Err(format!("slice {begun}, after {ended} ends: {event:?}"));
                }
                begun += 1;
            }
            track_event::Type::SliceEnd => ended += 1,
            _ => {}
        }
    }
    match (packets.tail(), begun == ended) {
        (Some(Tail::Whole), true) => Ok(begun),
        (tail, _) => Err(format!("{begun} begins, {ended} ends, tail {tail:?}")),
    }
}

/// The validator's word on the file, or on so much of it as a server writes by
/// default: it keeps all that it sees in memory. Slices, and rules they break.
fn validate(file: &Path) -> (usize, usize) {
    let mut start = Vec::new();
    let opened = File::open(file).expect("the file");
    let read = opened.take(64 << 20).read_to_end(&mut start);
    read.expect("the file can be read");
    let whole = {
        let source = Source::bytes("start", &start[..]);
        let mut packets = source.packets().expect("bytes");
        while packets.next_packet().expect("bytes").is_some() {}
        packets.whole_bytes() as usize
    };
    let source = Source::bytes("start", &start[..whole]);
    // The last slice may be cut in two.
    let report = check(&[source], &OpenSlices::Any).expect("bytes");
    for line in report.lines() {
        println!("{line}");
    }
    let broken = report.violations.counts().len();
    (report.timeline.slices.len(), broken)
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .expect("Linux has this clock")
        .into()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
