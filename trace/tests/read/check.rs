//! What the validator says of the good trace, and what it shows.

use crate::good_trace::{CORE_PID, NEEDS, REQUEST_FLOW, STEPS, WORKER_PID, Writer, good_trace};
use nano_trace::{
    Event,
    check::{OpenSlices, Rule, check},
    timeline::TrackOf,
};

#[test]
fn the_good_trace_is_clean_alone_and_together_in_any_order() {
    let mut sources = good_trace().sources();
    for source in &sources {
        let alone = std::slice::from_ref(source);
        check(alone, &OpenSlices::None).unwrap().assert_clean();
    }
    for _ in 0..3 {
        sources.rotate_left(1);
        check(&sources, &OpenSlices::None).unwrap().assert_clean();
    }
    sources.swap(0, 1);
    check(&sources, &OpenSlices::None).unwrap().assert_clean();
}

#[test]
fn the_timeline_holds_slices_arguments_counters_and_flows() {
    let report = check(&good_trace().sources(), &OpenSlices::None).unwrap();
    let timeline = report.timeline;
    let steps = timeline.slices_of(Event::CoreStep).collect::<Vec<_>>();
    assert_eq!(steps.len(), STEPS.len());
    for (place, step) in &steps {
        assert_eq!(step.duration(), Some(850_000));
        assert_eq!(step.arg("step_id").unwrap().uint(), Some(1));
        assert_eq!(step.arg("waiting").unwrap().uint(), Some(5));
        let children = timeline.children(*place).map(|(_, slice)| &*slice.name);
        assert_eq!(
            children.collect::<Vec<_>>(),
            [
                "receive",
                "schedule",
                "dispatch",
                "wait_workers",
                "update",
                "send"
            ]
        );
        let process = timeline.process(step.track).unwrap();
        assert_eq!(process.name, "nano-core");
        assert!(matches!(process.of, TrackOf::Process { pid, .. } if pid == CORE_PID));
    }
    let (_, request) = timeline.slices_of(Event::Request).next().unwrap();
    assert_eq!(request.arg("finish_reason").unwrap().text(), Some("stop"));
    let values = timeline
        .counter_values(Event::BatchedTokens)
        .map(|c| c.value);
    assert_eq!(values.collect::<Vec<_>>(), [17.0; 3]);
    let hops = timeline.flows[&REQUEST_FLOW]
        .iter()
        .map(|hop| timeline.hop(hop).0.unwrap());
    assert_eq!(
        hops.collect::<Vec<_>>(),
        [
            Event::Request,
            Event::EngineSubmit,
            Event::CoreReceive,
            Event::Prefill,
            Event::Forward,
            Event::CoreSend,
            Event::EngineReceive,
            Event::SseWrite
        ]
    );
    assert_eq!(timeline.facts, [("version".to_owned(), "0.1.0".to_owned())]);
    assert_eq!(timeline.instants.len(), 1);
    assert_eq!(timeline.instants[0].event, Some(Event::Finish));
}

#[test]
fn a_slice_may_stay_open_only_where_the_caller_says_so() {
    let mut files = good_trace();
    // The worker dies in its last step.
    files.worker.truncate(files.worker.len() - 1);
    let broken = |open: OpenSlices| {
        let report = check(&files.sources(), &open).unwrap();
        let rules = report.violations.counts().keys().copied();
        rules.collect::<Vec<_>>()
    };
    assert_eq!(broken(OpenSlices::None), [Rule::SliceOpen]);
    assert_eq!(broken(OpenSlices::Of(vec![CORE_PID])), [Rule::SliceOpen]);
    assert_eq!(broken(OpenSlices::Of(vec![CORE_PID, WORKER_PID])), []);
    assert_eq!(broken(OpenSlices::Any), []);
}

#[test]
fn a_flow_may_lack_its_other_end_where_that_process_did_not_record() {
    let mut files = good_trace();
    // The worker died before the last step reached it.
    let last = files.worker.iter().rposition(|packet| {
        packet.sequence_flags == Some(NEEDS) && packet.timestamp < Some(5_003_000_000)
    });
    files.worker.truncate(last.unwrap() + 1);
    check(&files.sources(), &OpenSlices::None)
        .unwrap()
        .assert_clean();
}

#[test]
fn stamps_on_a_clock_of_the_sequence_are_placed_on_boottime() {
    let plain = check(&good_trace().sources(), &OpenSlices::None).unwrap();
    let mut files = good_trace();
    for packet in &mut files.core {
        if packet.sequence_flags == Some(NEEDS) {
            packet.timestamp_clock_id = Some(64);
            packet.timestamp = packet.timestamp.map(|stamp| stamp - 1_000_000);
        }
    }
    let scoped = check(&files.sources(), &OpenSlices::None).unwrap();
    scoped.assert_clean();
    let times = |timeline: &nano_trace::timeline::Timeline| {
        let slices = timeline.slices.iter();
        slices.map(|s| (s.begin, s.end)).collect::<Vec<_>>()
    };
    assert_eq!(times(&plain.timeline), times(&scoped.timeline));
}

#[test]
fn a_sequence_may_be_cleared_again() {
    let mut files = good_trace();
    let restart = Writer::new(102, CORE_PID, "core").into_packets();
    let middle = files.core.len() / 2;
    files.core.splice(middle..middle, restart);
    check(&files.sources(), &OpenSlices::None)
        .unwrap()
        .assert_clean();
}
