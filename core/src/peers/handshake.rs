//! Who a connection is.

use crate::error::CoreError;
use crate::peers::{FrontendEvent, Identity, PeerEvent, Peers};
use crate::sequence::ClientId;
use nano_ipc::role::Role;
use nano_ipc::to_core::{Hello, PROTOCOL_VERSION};

impl Peers {
    /// Takes a `Hello`: from here on the connection is what it says.
    ///
    /// # Errors
    /// When a process of this server is of another version: it was installed
    /// wrongly as a whole.
    pub(super) fn greet(
        &mut self,
        id: ClientId,
        hello: Hello,
    ) -> Result<Option<PeerEvent>, CoreError> {
        if hello.run != self.run {
            self.dismiss(id, &format!("{} belongs to another server", hello.role));
            return Ok(None);
        }
        if hello.protocol_version != PROTOCOL_VERSION {
            return Err(CoreError::ProtocolVersion {
                role: hello.role,
                theirs: hello.protocol_version,
                ours: PROTOCOL_VERSION,
            });
        }
        let identity = match hello.role {
            Role::Frontend => Identity::Frontend,
            Role::Worker { rank } if rank < self.world_size => Identity::Worker { rank },
            Role::Worker { .. } | Role::Core => {
                self.dismiss(id, &format!("{} has no place here", hello.role));
                return Ok(None);
            }
        };
        let is_worker = matches!(identity, Identity::Worker { .. });
        if is_worker && self.peers.values().any(|peer| peer.identity == identity) {
            self.dismiss(id, &format!("{} is connected already", hello.role));
            return Ok(None);
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.identity = identity;
        }
        log::debug!("connection {} is {}", id.0, hello.role);
        let joined = PeerEvent::Frontend(id, FrontendEvent::Joined);
        Ok((identity == Identity::Frontend).then_some(joined))
    }
}
