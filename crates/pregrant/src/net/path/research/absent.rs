//! A back that was built without the feature `research` meets `foreign` and `guest-copy`, which
//! another build offered or accepted.
//!
//! ```text
//!   a new connection        the back writes that it offers neither, over keys that another build
//!                           may have left
//!   live rings              of a predecessor that had accepted one: the vif is Lost, for its front goes on naming
//!                           frames of memory where this back reads grants, or waits for pages that no one lends
//! ```
//! What a front may do: request either. The keys are not read.

use super::keys::{FEATURE_FOREIGN, FEATURE_GUEST_COPY, FOREIGN_ACTIVE, GUEST_COPY_ACTIVE};
use crate::memory;
use crate::net::features::FrontRequest;
use crate::net::path::acceptance::{Accepted, Lost, Said};
use crate::net::path::path_name::PathName;
use crate::platform::Platform;
use crate::xenbus::KeyName;
use crate::xenbus::key_source::{KeySink, put};
use crate::xenbus::ring_keys::queue_prefix;

/// Writes that the back does not offer the path.
pub fn put_no_offer(path: PathName, pairs: &mut dyn KeySink) {
    let key = if path == PathName::Foreign { FEATURE_FOREIGN } else { FEATURE_GUEST_COPY };
    put(pairs, key, 0);
}

/// The key of the back's directory that says whether a predecessor accepted the path.
pub fn active_key(path: PathName, front: &FrontRequest, queue: usize) -> Option<KeyName> {
    if path == PathName::Foreign {
        return (queue == 0).then(|| KeyName::of(FOREIGN_ACTIVE));
    }
    Some(queue_prefix(queue, front.queues.len()) + GUEST_COPY_ACTIVE)
}

/// Accepts nothing.
///
/// # Errors
///
/// A predecessor accepted the path, and the front of the live rings uses it.
pub fn accept<P: Platform>(path: PathName, said: Said<'_>) -> Result<Accepted<P>, Lost> {
    if said.whole(false) {
        return Err(Lost(memory::text(format_args!(
            "its guest uses path {path}, which an earlier backend accepted and this program is built without"
        ))
        .unwrap_or_default()));
    }
    Ok(Accepted::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::features::{ChannelKeys, QueueKeys};
    use crate::platform::local::LocalDomain;
    use crate::units::{EvtchnPort, GrantRef};
    use crate::xenbus::key_source::Pairs;
    use alloc::string::String;
    use alloc::vec;

    const BOTH: [PathName; 2] = [PathName::Foreign, PathName::GuestCopy];

    fn accepts(path: PathName, said: Said<'_>) -> Result<(), Lost> {
        let Accepted { tx, rx, pages, active } = accept::<LocalDomain>(path, said)?;
        assert!(tx.is_none() && rx.is_none() && pages == 0 && active.is_none());
        Ok(())
    }

    #[test]
    fn an_offer_of_another_build_is_written_over() {
        let mut pairs = Pairs::new();
        BOTH.into_iter().for_each(|path| put_no_offer(path, &mut pairs));
        let pair = |key: &str| (String::from(key), String::from("0"));
        assert_eq!(pairs, [pair("feature-foreign"), pair("feature-guest-copy")]);
    }

    #[test]
    fn live_rings_that_use_the_path_are_lost_and_no_others() {
        let queue = QueueKeys::new(GrantRef(8), GrantRef(9), ChannelKeys::Single(EvtchnPort(1)));
        let front = FrontRequest::new(vec![queue.clone(), queue]);
        let keys = |path| [0, 1].map(|queue| active_key(path, &front, queue));
        assert_eq!(keys(PathName::Foreign), [Some(KeyName::of("foreign-active")), None]);
        let of_queues = ["queue-0/guest-copy-active", "queue-1/guest-copy-active"];
        assert_eq!(keys(PathName::GuestCopy), of_queues.map(|key| Some(KeyName::of(key))));
        for path in BOTH {
            for said in [Said::Fresh, Said::Reattach(None), Said::Reattach(Some("0"))] {
                assert_eq!(accepts(path, said), Ok(()), "{said:?}");
            }
            let Lost(why) = accepts(path, Said::Reattach(Some("1"))).unwrap_err();
            assert!(why.contains(path.name()), "{why}");
        }
    }
}
