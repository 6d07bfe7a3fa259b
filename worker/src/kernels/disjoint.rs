//! A slice whose disjoint parts several threads write.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose disjoint parts several threads write.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts of an exclusive slice, each to one thread (the
// contract of `part`).
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// A part of the slice.
    ///
    /// # Panics
    /// When the range is not inside the slice.
    ///
    /// # Safety
    /// While the part lives, no other part that overlaps it does.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // that is its purpose
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
