//! Prompts of random words.

use crate::workload::random::Random;
use rand::RngExt;

/// Frequent English words, which most vocabularies hold whole, with the space
/// before them: about one token each. How many the server counts, it says.
const WORDS: &str = "time year people way day man thing woman life child world school state \
family student group country problem hand part place case week company system program question \
work government number night point home water room mother area money story fact month lot right \
study book eye job word business issue side kind head house service friend father power hour game \
line end member law car city community name president team minute idea kid body information back \
parent face others level office door health person art war history party result change morning \
reason research girl guy moment air teacher force education foot boy age policy music process \
market sense nation plan college interest death course experience effect use class control field \
development role effort rate heart drug show leader light voice wife police mind price report \
decision son view relationship town road arm difference value building action season society tax \
director position player record paper space ground form event official matter center couple site \
project activity star table need court oil situation cost industry figure street image phone data \
picture practice piece land product doctor wall patient worker news test movie north love";

/// A text of so many words.
pub fn text(words: u32, random: &mut Random) -> String {
    let known: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::with_capacity(words as usize * 7);
    for place in 0..words {
        if place > 0 {
            text.push(' ');
        }
        if let Some(word) = known.get(random.random_range(0..known.len())) {
            text.push_str(word);
        }
    }
    text
}
