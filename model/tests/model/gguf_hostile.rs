//! No bytes make the reader panic, or allocate more than in proportion.

use crate::gguf_builder::{GgufBuilder, file};
use crate::golden_path;
use nano_model::ModelSource;
use proptest::prelude::*;

/// Reads everything there is to read; errors are fine, panics are not.
fn read_all(bytes: &[u8]) {
    let file = file(bytes);
    let Ok(source) = ModelSource::open(file.path()) else {
        return;
    };
    if let ModelSource::Gguf(gguf) = &source {
        for info in gguf.tensors() {
            let data = gguf.tensor_data(&info.name).unwrap();
            assert_eq!(data.len() as u64, info.bytes);
        }
        let _ = gguf.tokenizer();
    }
    let _ = source.validate();
}

/// Changes that keep most of a header readable, so that they reach deep.
fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, Mutation)>> {
    let value = prop_oneof![
        any::<u8>().prop_map(Mutation::Byte),
        prop_oneof![
            Just(0),
            Just(u64::MAX),
            Just(u64::MAX / 2 + 1),
            Just(1 << 32),
            0..4096u64
        ]
        .prop_map(Mutation::Word),
        Just(Mutation::Cut),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), value), 1..4)
}

#[derive(Clone, Debug)]
enum Mutation {
    Byte(u8),
    Word(u64),
    Cut,
}

fn mutate(bytes: &mut Vec<u8>, header: usize, mutations: &[(prop::sample::Index, Mutation)]) {
    for (index, mutation) in mutations {
        let at = index.index(header.min(bytes.len()).max(1));
        match mutation {
            Mutation::Byte(value) => bytes[at..].iter_mut().take(1).for_each(|b| *b = *value),
            Mutation::Word(value) => bytes[at..]
                .iter_mut()
                .zip(value.to_le_bytes())
                .for_each(|(b, value)| *b = value),
            Mutation::Cut => bytes.truncate(at.max(1)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_headers(mutations in mutations()) {
        let mut bytes = GgufBuilder::llama().bytes();
        let header = bytes.len();
        mutate(&mut bytes, header, &mutations);
        read_all(&bytes);
    }

    #[test]
    fn arbitrary_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        read_all(&bytes);
        bytes.splice(0..0, *b"GGUF\x03\0\0\0");
        read_all(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_real_file(mutations in mutations()) {
        let mut bytes = std::fs::read(golden_path("gguf/tiny-llama-spm.Q8_0.gguf")).unwrap();
        mutate(&mut bytes, 32 * 1024, &mutations);
        read_all(&bytes);
    }
}
