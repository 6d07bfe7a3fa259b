//! Rows of a table of cases, side by side.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Checks every row, `at_once` of them at a time. What fails names its row.
#[track_caller]
pub fn check_all<R: Debug + Sync>(rows: &[R], at_once: usize, check: impl Fn(&R) + Sync) {
    let next = AtomicUsize::new(0);
    let failed: Vec<String> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..at_once.min(rows.len()))
            .map(|_| scope.spawn(|| failures(rows, &next, &check)))
            .collect();
        let lanes = lanes.into_iter();
        lanes
            .flat_map(|lane| lane.join().expect("rows are caught"))
            .collect()
    });
    assert!(failed.is_empty(), "failed (see above): {failed:#?}");
}

/// Takes rows until none is left; those that failed.
fn failures<R: Debug + Sync>(
    rows: &[R],
    next: &AtomicUsize,
    check: &(impl Fn(&R) + Sync),
) -> Vec<String> {
    let mut failed = Vec::new();
    while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
        let name = format!("{row:?}");
        let checked = thread::scope(|scope| {
            let thread = thread::Builder::new().name(name.clone());
            let row = thread.spawn_scoped(scope, || check(row));
            row.expect("a thread").join()
        });
        if checked.is_err() {
            failed.push(name);
        }
    }
    failed
}
