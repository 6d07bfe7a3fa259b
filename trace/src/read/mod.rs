//! From files to packets: what is whole in a file, and where that ends.

mod packets;
mod source;

pub use packets::{MAX_PACKET_BYTES, Packet, PacketReader, Tail};
pub use source::Source;
