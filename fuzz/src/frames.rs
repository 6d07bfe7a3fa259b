//! A stream of frames, read as each of the processes does.

use nano_ipc::frame::{self, FrameBuffer};
use nano_ipc::to_core::ToCore;
use nano_ipc::to_frontend::ToFrontend;
use nano_ipc::to_launcher::ToLauncher;
use nano_ipc::to_worker::ToWorker;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Reads these bytes, cut in two at a place that they choose, as messages to
/// every receiver.
pub fn run(bytes: &[u8]) {
    let (at, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let cut = usize::from(*at).min(bytes.len());
    read::<ToCore>(bytes, cut);
    read::<ToFrontend>(bytes, cut);
    read::<ToWorker>(bytes, cut);
    read::<ToLauncher>(bytes, cut);
}

/// What was read is a message: written again, it is the same.
fn read<M: Serialize + DeserializeOwned + Debug>(bytes: &[u8], cut: usize) {
    let mut buffer = FrameBuffer::default();
    for part in [&bytes[..cut], &bytes[cut..]] {
        buffer.extend(part);
        while let Ok(Some(message)) = buffer.next::<M>() {
            let mut written = Vec::new();
            frame::write(&message, &mut written).expect("it was within the limits");
            let mut again = FrameBuffer::default();
            again.extend(&written);
            let read = again.next::<M>().expect("our own").expect("whole");
            // Not by `==`: a NaN is not equal to itself.
            assert_eq!(format!("{read:?}"), format!("{message:?}"));
        }
    }
}
