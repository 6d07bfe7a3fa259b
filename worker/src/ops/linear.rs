//! What a linear layer is for.

use std::fmt;

/// What a linear layer is for: a backend may keep and split weights by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearRole {
    /// Queries, keys and values of an attention layer.
    Qkv,
    /// Output projection of an attention layer.
    O,
    /// Gate and up projections of an MLP.
    GateUp,
    /// Down projection of an MLP.
    Down,
    /// Hidden states to logits.
    LmHead,
}

impl fmt::Display for LinearRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinearRole::Qkv => "qkv",
            LinearRole::O => "o",
            LinearRole::GateUp => "gate_up",
            LinearRole::Down => "down",
            LinearRole::LmHead => "lm_head",
        })
    }
}
