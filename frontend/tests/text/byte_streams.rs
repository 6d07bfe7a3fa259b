//! Streams of arbitrary ids: the pieces together are the decoded whole, and
//! that is what the tokenizer library decodes.

use crate::{golden_path, load_golden};
use nano_frontend::text::{TextModel, Tokenizer};
use nano_model::ModelSource;
use proptest::prelude::*;
use std::sync::LazyLock;

/// Our text layer and the library's own tokenizer, for the same vocabulary.
struct Pair {
    ours: Tokenizer,
    library: tokenizers::Tokenizer,
}

impl Pair {
    fn new(ours: &str, library: &str) -> Self {
        let source = ModelSource::open(&golden_path(ours)).unwrap();
        let library = golden_path(&format!("models/{library}/tokenizer.json"));
        Self {
            ours: Tokenizer::load(&source).unwrap(),
            library: tokenizers::Tokenizer::from_file(library).unwrap(),
        }
    }
}

static BYTE_LEVEL: LazyLock<Pair> = LazyLock::new(|| Pair::new("models/tiny-llama", "tiny-llama"));
static SPM: LazyLock<Pair> =
    LazyLock::new(|| Pair::new("gguf/tiny-llama-spm.Q8_0.gguf", "tiny-mistral"));

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut detokenizer = tokenizer.detokenizer(skip_special);
    let mut text = String::new();
    for &id in ids {
        let piece = detokenizer.push(id);
        text.push_str(&piece);
    }
    text + &detokenizer.finish()
}

/// Ids of single bytes (0..=255 of the byte alphabet come early in these
/// vocabularies) mixed with all others, and some that no token has.
fn ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![4..260u32, 0..768u32, 760..800u32], 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn byte_level(ids in ids(), skip_special: bool) {
        let whole = BYTE_LEVEL.ours.decode(&ids, skip_special);
        prop_assert_eq!(&streamed(&BYTE_LEVEL.ours, &ids, skip_special), &whole);
        prop_assert_eq!(BYTE_LEVEL.library.decode(&ids, skip_special).unwrap(), whole);
    }

    /// A stream continues a prompt, so it keeps the space that a text of its
    /// own loses. Bytes that form no text are U+FFFD each in the library when
    /// any of their run is bad; ours keep the whole characters among them, so
    /// only runs that are wholly good are compared.
    #[test]
    fn byte_fallback(ids in ids(), skip_special: bool) {
        let whole = SPM.ours.decode(&ids, skip_special);
        let stream = streamed(&SPM.ours, &ids, skip_special);
        prop_assert_eq!(stream.strip_prefix(' ').unwrap_or(&stream), &whole);
        let library = SPM.library.decode(&ids, skip_special).unwrap();
        if !library.contains(char::REPLACEMENT_CHARACTER) {
            prop_assert_eq!(library, whole);
        }
    }

    /// Text cut into single bytes comes back, whatever it is.
    #[test]
    fn bytes_of_text(text: String) {
        let ids = SPM.ours.encode(&text, false).unwrap();
        let library = SPM.library.encode(text.as_str(), false).unwrap();
        prop_assert_eq!(ids, library.get_ids());
        let ids = BYTE_LEVEL.ours.encode(&text, false).unwrap();
        prop_assert_eq!(BYTE_LEVEL.ours.decode(&ids, false), text);
    }
}

#[test]
fn bad_bytes_do_not_destroy_whole_characters() {
    let text = load_golden("gguf/tiny-llama-spm.Q8_0.gguf");
    // Byte tokens start at id 10.
    let byte = |byte: u8| 10 + u32::from(byte);
    let ids: Vec<u32> = "é😀".bytes().chain([0xFF, 0xC3]).map(byte).collect();
    assert_eq!(text.decode(&ids, false), "é😀\u{fffd}\u{fffd}");
    let mut detokenizer = text.detokenizer(false);
    let pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "😀", "\u{fffd}", ""]);
    assert_eq!(detokenizer.finish(), "\u{fffd}");
}

#[test]
fn a_continued_text_keeps_its_space() {
    let text: TextModel = load_golden("gguf/tiny-llama-spm.Q8_0.gguf");
    let ids = text.encode("the", false).unwrap();
    assert_eq!(text.decode(&ids, false), "the");
    let mut detokenizer = text.detokenizer(false);
    let stream: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(stream, " the");
}
