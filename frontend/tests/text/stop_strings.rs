//! Stop strings never leak and never swallow, however a text is cut.

use nano_frontend::text::StopStrings;
use proptest::prelude::*;

/// What is shown of a text that comes in these pieces, and what stopped it.
fn shown(stop: &StopStrings, pieces: &[&str]) -> (String, Option<String>) {
    let mut matcher = stop.matcher();
    let mut text = String::new();
    for piece in pieces {
        text.push_str(&matcher.push(piece));
    }
    let stopped = matcher.stopped_at().map(str::to_owned);
    let rest = matcher.finish();
    assert!(stopped.is_none() || rest.is_empty());
    (text + &rest, stopped)
}

/// By definition: the stop string with the first end; of equal ends the longest.
fn expected(text: &str, stop: &[String], include: bool) -> (String, Option<String>) {
    let first = (0..=text.len())
        .filter(|&end| text.is_char_boundary(end))
        .find_map(|end| {
            stop.iter()
                .filter(|stop| !stop.is_empty() && text[..end].ends_with(*stop))
                .max_by_key(|stop| stop.len())
                .map(|stop| (end, stop))
        });
    match first {
        None => (text.to_owned(), None),
        Some((end, stop)) => {
            let end = if include { end } else { end - stop.len() };
            (text[..end].to_owned(), Some(stop.clone()))
        }
    }
}

#[test]
fn examples() {
    let check = |stop: &[&str], pieces: &[&str], text: &str, stopped: Option<&str>| {
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let got = shown(&StopStrings::new(&stop, false), pieces);
        assert_eq!(got, (text.to_owned(), stopped.map(str::to_owned)));
    };
    check(&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some("\n\n"));
    check(&["STOP"], &["S", "T", "O", "x", "ST"], "STOxST", None);
    check(&["STOP"], &["go ST", "OP on", " more"], "go ", Some("STOP"));
    check(&["aab"], &["a", "a", "a", "b"], "a", Some("aab"));
    check(&["bcd", "c"], &["ab", "cd"], "ab", Some("c"));
    check(&["c", "abc"], &["xabc"], "x", Some("abc"));
    check(&["é"], &["caf", "é", "!"], "caf", Some("é"));
    check(&[""], &["all"], "all", None);
    check(&[], &["all"], "all", None);
}

#[test]
fn only_a_beginning_is_held_back() {
    let stop = StopStrings::new(&["</s>".into(), "\nUser:".into()], false);
    let mut matcher = stop.matcher();
    assert_eq!(matcher.push("Hello"), "Hello");
    assert_eq!(matcher.push(" <"), " ");
    assert_eq!(matcher.push("/b"), "</b");
    assert_eq!(matcher.push("\nUs"), "");
    assert_eq!(matcher.push("e"), "");
    assert_eq!(matcher.push("d"), "\nUsed");
    assert_eq!(matcher.finish(), "");
}

fn small_text(max: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", "b", "é", "😀", "\n"]),
        0..max,
    )
    .prop_map(|letters| letters.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_of_every_text(
        text in small_text(14),
        stop in prop::collection::vec(small_text(5), 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        include: bool,
    ) {
        let mut at: Vec<usize> = cuts
            .iter()
            .map(|cut| cut.index(text.len() + 1))
            .filter(|&cut| text.is_char_boundary(cut))
            .chain([0, text.len()])
            .collect();
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let matcher = StopStrings::new(&stop, include);
        prop_assert_eq!(shown(&matcher, &pieces), expected(&text, &stop, include));
    }

    /// At any moment, what was not shown could still become a stop string.
    #[test]
    fn nothing_is_held_without_reason(
        text in small_text(14),
        stop in prop::collection::vec(small_text(5), 1..4),
    ) {
        let mut matcher = StopStrings::new(&stop, false).matcher();
        let (mut come, mut shown) = (String::new(), String::new());
        for c in text.chars() {
            come.push(c);
            shown.push_str(&matcher.push(&c.to_string()));
            if matcher.stopped_at().is_some() {
                break;
            }
            let held = &come[shown.len()..];
            prop_assert!(held.is_empty() || stop.iter().any(|stop| stop.starts_with(held)));
        }
    }
}
