//! What pictures are drawn of.

use nano_trace::check::{OpenSlices, check};
use nano_trace::merge::MergeError;
use nano_trace::read::Source;
use nano_trace::timeline::Timeline;

/// What the sources show, as far as they are whole; what is not is told on
/// standard error.
///
/// # Errors
/// When one of them cannot be read, or is no trace.
pub(crate) fn timeline(sources: &[Source]) -> Result<Timeline, MergeError> {
    let report = check(sources, &OpenSlices::Any)?;
    report.only_traces()?;
    for file in &report.files {
        if let Some(loss) = file.tail.loss() {
            eprintln!("nano-trace: {}: {loss}", file.source);
        }
    }
    Ok(report.timeline)
}
