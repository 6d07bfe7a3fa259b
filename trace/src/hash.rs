//! Identities: ids that several processes derive alike without talking, and
//! that two runs, processes or tracks never share by accident.

/// What an id is of. It is hashed too, so that a track and a flow made of the
/// same numbers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Domain {
    Process = 1,
    Thread,
    Request,
    Counter,
    Flow,
    Sequence,
    Trace,
}

/// A 64-bit id that is never 0, which Perfetto reads as "none".
pub(crate) fn hash(domain: Domain, words: &[u64]) -> u64 {
    words
        .iter()
        .fold(domain as u64, |state, &word| mix(mix(state) ^ word))
        .max(1)
}

/// A 32-bit packet sequence id that is never 0.
pub(crate) fn sequence_id(words: &[u64]) -> u32 {
    ((hash(Domain::Sequence, words) >> 32) as u32).max(1)
}

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", 2014): a bijection whose every output bit depends on
/// every input bit.
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_by_domain_order_and_word() {
        let mut seen = HashSet::new();
        for domain in [Domain::Process, Domain::Thread, Domain::Flow] {
            for a in 0..50 {
                for b in 0..50 {
                    assert!(seen.insert(hash(domain, &[a, b])));
                }
            }
        }
        assert_ne!(hash(Domain::Flow, &[1]), hash(Domain::Flow, &[1, 0]));
    }

    #[test]
    fn ids_are_stable() {
        // Processes of one server may be of different builds in a rolling
        // update; arrows need the same ids in each.
        assert_eq!(
            hash(Domain::Flow, &[1, 2, 3]),
            hash(Domain::Flow, &[1, 2, 3])
        );
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }
}
