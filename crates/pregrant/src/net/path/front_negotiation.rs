//! The requests of a front to its back for one path, and the memory that they need.
//!
//! ```text
//!   Wanted --asked--> the part that this back offers --take_memory--> a queue's chains, its keys --taken--> the part that the back has
//! ```
//! Every method has a default, for a path that needs no such request.

use super::active::ActiveLists;
use super::negotiation::Negotiation;
use super::path_not_offered::PathNotOffered;
use crate::error::PlatformError;
use crate::net::features::BackFeatures;
use crate::net::front::queue_memory::QueueMemory;
use crate::net::front::regions::Granting;
use crate::platform::Platform;
use crate::xenbus::key_source::KeySource;
use alloc::vec;
use alloc::vec::Vec;

/// See the module.
pub trait FrontNegotiation: Negotiation {
    /// Where memory is short at the front, other paths go on with less before this one is done
    /// without.
    const KEPT: bool = false;

    /// Whether this is more memory than frames need, which is given up before any that they do.
    fn is_extra(asked: Self::Wanted) -> bool {
        let _ = asked;
        false
    }
    /// What the front requests of such a back. `can_name`: the platform can name this domain's
    /// frames.
    fn asked(wanted: Self::Wanted, back: &BackFeatures, can_name: bool) -> Self::Wanted {
        let _ = (wanted, back, can_name);
        Self::Wanted::default()
    }
    /// What the config wants and this back does not offer. `alone`: nor is it needed, where
    /// another path carries every frame.
    fn not_offered(
        wanted: Self::Wanted,
        asked: Self::Wanted,
        back: &BackFeatures,
        alone: bool,
    ) -> Vec<PathNotOffered> {
        let _ = (back, alone);
        let nothing = Self::Wanted::default();
        if wanted != nothing && asked == nothing {
            vec![PathNotOffered::Path(Self::NAME)]
        } else {
            Vec::new()
        }
    }
    /// Whether the front requests no other path beside it.
    fn is_alone(asked: Self::Wanted) -> bool {
        let _ = asked;
        false
    }
    /// How it needs ordinary pages to be granted; None: as it comes.
    fn granting(asked: Self::Wanted) -> Option<Granting> {
        let _ = asked;
        None
    }
    /// Ordinary pages of a direction in which it moves frames without a grant operation, of a vif
    /// with so many queues; 0: as many as slots.
    fn pages(asked: Self::Wanted, back: &BackFeatures, queues: u32) -> u32 {
        let _ = (asked, back, queues);
        0
    }
    /// Whether the back keeps ordinary pages mapped once it has seen them.
    fn keeps_seen(asked: Self::Wanted) -> bool {
        let _ = asked;
        false
    }
    /// Whether the front requests it over the control ring.
    fn needs_ctrl(asked: Self::Wanted) -> bool {
        let _ = asked;
        false
    }
    /// Memory may be short: this, then what can be had with less, the best first; in the end
    /// without.
    fn smaller(asked: Self::Wanted, back: &BackFeatures) -> Vec<Self::Wanted> {
        let _ = back;
        vec![asked]
    }
    /// What a front asks for, of all queues.
    fn request_of(asked: Self::Wanted) -> Self::Request {
        let _ = asked;
        Self::Request::default()
    }
    /// Memory for a queue, into its chains; and what the front asks for then. After an error some
    /// of it is there.
    fn take_memory<P: Platform>(
        asked: Self::Wanted,
        queue: &mut QueueMemory<'_, P>,
    ) -> Result<Self::QueueRequest, PlatformError> {
        let _ = (asked, queue);
        Ok(Self::QueueRequest::default())
    }
    /// In which directions the back has taken what a queue (which, of how many) shared with it, by
    /// its keys. The back may be a successor that never saw the request: it has to offer the path,
    /// too.
    fn taken<S: KeySource>(
        keys: &mut S,
        back: &BackFeatures,
        queue: (usize, usize),
        shared: ActiveLists,
    ) -> Result<ActiveLists, S::Error> {
        let _ = (keys, back, queue);
        Ok(shared)
    }
}
