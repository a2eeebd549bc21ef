//! The names of the keys of both paths (docs/protocol 4.6.1 and 4.7). A build without the paths has
//! them too: a front or back of another build may have left them in the directories that this one
//! begins with.
//!
//! ```text
//!                       foreign                      guest-copy, of each queue beside its rings' keys
//!   back's directory:   feature-foreign = "1"        feature-guest-copy = "1"
//!   front's directory:  request-foreign = "1"        guest-copy-ref
//!   back's directory:   foreign-active = "1", "0"    guest-copy-active = "1", "0"
//! ```

use crate::net::path::keys::PathKeys;

/// The back's key that offers to map all of a guest.
pub const FEATURE_FOREIGN: &str = "feature-foreign";
/// The front's key by which it agrees that the back maps all of the guest's memory.
pub const REQUEST_FOREIGN: &str = "request-foreign";
/// The back's key that says whether the guest's memory is mapped.
pub const FOREIGN_ACTIVE: &str = "foreign-active";

/// The keys of `foreign`.
pub const FOREIGN: PathKeys = PathKeys {
    offers: &[FEATURE_FOREIGN],
    active: &[FOREIGN_ACTIVE],
    directions: None,
    front: &[REQUEST_FOREIGN],
};

/// The back's key that offers to lend pages.
pub const FEATURE_GUEST_COPY: &str = "feature-guest-copy";
/// The front's key, where its `rx-ring-ref` is: the grant of the list page.
pub const GUEST_COPY_REF: &str = "guest-copy-ref";
/// The back's key in the queue's directory that says whether the back lends pages to the guest.
pub const GUEST_COPY_ACTIVE: &str = "guest-copy-active";

/// The keys of `guest-copy`.
pub const GUEST_COPY: PathKeys = PathKeys {
    offers: &[FEATURE_GUEST_COPY],
    active: &[GUEST_COPY_ACTIVE],
    directions: None,
    front: &[GUEST_COPY_REF],
};
