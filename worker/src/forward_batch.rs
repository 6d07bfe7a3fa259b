//! One step laid out as rows: what the operations read beside tensors.

use std::ops::Range;

/// The consecutive rows of one sequence within a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its rows; not empty. Their positions increase by one.
    pub rows: Range<usize>,
    /// Its block table within [`ForwardBatch::block_tables`]; it covers every
    /// position up to its last row's.
    pub blocks: Range<usize>,
}

/// One step laid out as rows, one for each token that is computed. Refilled for
/// every step, so that its allocations last.
///
/// Invariants, kept by [`push`](Self::push): `token_ids`, `positions` and
/// `slots` have one element a row; spans follow each other without gap and
/// cover all rows; `slots[row]` is the KV slot of `positions[row]` in its
/// span's block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardBatch {
    block_size: usize,
    /// Token of each row.
    pub token_ids: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Where each row's keys and values are written: block id x block size +
    /// offset within the block.
    pub slots: Vec<u32>,
    /// Block tables of all spans, one behind the other.
    pub block_tables: Vec<u32>,
    /// The sequences' rows.
    pub spans: Vec<Span>,
}

impl ForwardBatch {
    /// An empty batch over blocks of `block_size` slots.
    pub fn new(block_size: usize) -> ForwardBatch {
        ForwardBatch {
            block_size,
            token_ids: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            block_tables: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Slots of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Tokens that are computed.
    pub fn rows(&self) -> usize {
        self.token_ids.len()
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.positions.clear();
        self.slots.clear();
        self.block_tables.clear();
        self.spans.clear();
    }

    /// Appends the rows of one sequence: `token_ids` at positions from
    /// `first_position` on, over a block table that covers the last of them.
    pub fn push(
        &mut self,
        token_ids: &[u32],
        first_position: usize,
        block_table: impl IntoIterator<Item = u32>,
    ) {
        let first_row = self.rows();
        let first_block = self.block_tables.len();
        self.block_tables.extend(block_table);
        let blocks = first_block..self.block_tables.len();
        for (offset, &token_id) in token_ids.iter().enumerate() {
            let position = first_position + offset;
            let block = self.block_tables[first_block + position / self.block_size];
            self.token_ids.push(token_id);
            self.positions.push(position as u32);
            self.slots
                .push(block * self.block_size as u32 + (position % self.block_size) as u32);
        }
        self.spans.push(Span {
            rows: first_row..self.rows(),
            blocks,
        });
    }

    /// Positions that the last row of a span attends to, itself included.
    pub fn context_len(&self, span: &Span) -> usize {
        self.positions[span.rows.end - 1] as usize + 1
    }

    /// The block table of a span.
    pub fn block_table(&self, span: &Span) -> &[u32] {
        &self.block_tables[span.blocks.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_each_sequence_follow_its_block_table() {
        let mut batch = ForwardBatch::new(4);
        batch.push(&[10, 11, 12], 3, [7, 2]);
        batch.push(&[20], 0, [5]);
        assert_eq!(batch.positions, [3, 4, 5, 0]);
        assert_eq!(batch.slots, [7 * 4 + 3, 2 * 4, 2 * 4 + 1, 5 * 4]);
        assert_eq!(batch.spans[1].rows, 3..4);
        assert_eq!(batch.block_table(&batch.spans[0]), [7, 2]);
        assert_eq!(batch.context_len(&batch.spans[0]), 6);
        batch.clear();
        assert_eq!(batch, ForwardBatch::new(4));
    }
}
