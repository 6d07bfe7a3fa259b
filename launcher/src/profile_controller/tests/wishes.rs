//! What clients and the operator want recorded, and what of it can be.

use super::*;

#[test]
fn the_operator_s_cap_holds_and_what_cannot_be_recorded_is_said() {
    let mut server = Server::start(Mode::Manual);
    let wishes = StartProfile {
        max_bytes: Some(CAP * 2),
        activities: Activities {
            gpu: true,
            samples: Some(SampleRate::DEFAULT),
            foreign: true,
        },
        names_directory: true,
        ignored: vec!["num_step".to_owned(), "prompt".to_owned()],
        ..StartProfile::default()
    };
    let state = server.done(start(wishes));
    let [cap, gpu, foreign, directory, ignored] = &state.notes[..] else {
        panic!("{:?}", state.notes);
    };
    assert!(cap.contains("64 MiB"), "{cap}");
    assert!(gpu.contains("no CUDA"), "{gpu}");
    assert!(foreign.contains("rpd"), "{foreign}");
    assert!(directory.contains("output_dir"), "{directory}");
    assert!(ignored.ends_with("ignored: num_step, prompt"), "{ignored}");
    let specs = server.controller.sessions_at_start(&[Role::Core]);
    assert_eq!(specs[0].max_bytes, CAP);
    assert_eq!(specs[0].sample_rate, Some(SampleRate::DEFAULT));
}

#[test]
fn the_operator_s_sessions_have_the_operator_s_samples_and_clients_ask() {
    let rate = SampleRate::try_from(7).ok();
    let mut server = Server::with_samples(Mode::Auto, rate);
    let sampled = |server: &Server| {
        let specs = server.controller.sessions_at_start(&[Role::Core]);
        specs[0].sample_rate
    };
    assert_eq!(sampled(&server), rate);
    server.start_named("a");
    assert_eq!(sampled(&server), None);
    for _ in 0..2 {
        server.controller.toggled(server.now);
        server.settle();
    }
    assert_eq!(sampled(&server), rate);
}
