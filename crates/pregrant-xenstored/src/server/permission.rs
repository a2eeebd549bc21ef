//! Callers, and what the permissions of [`pregrant::xenstore::permission`] allow them.

use super::tree::Perms;
use pregrant::DomId;
use pregrant::xenstore::permission::Permission;

/// The client that makes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The domain of the connection.
    pub domid: DomId,
    /// The domain that the caller may also act for.
    pub target: Option<DomId>,
}

/// The access that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Needed to see the node.
    Read,
    /// Needed to change or remove the node, or to create nodes below it.
    Write,
    /// Needed to change the node's permissions.
    Own,
}

impl Caller {
    /// True for domain 0, which may do anything.
    pub fn is_privileged(self) -> bool {
        self.domid == DomId(0)
    }

    fn is(self, domid: DomId) -> bool {
        self.domid == domid || self.target == Some(domid)
    }

    /// Whether a node's permissions give the caller the access that it needs.
    pub fn may(self, need: Need, perms: &[Permission]) -> bool {
        let Some((first, named)) = perms.split_first() else { return self.is_privileged() };
        if self.is_privileged() || self.is(first.domid) {
            return true;
        }
        let access = |domid| named.iter().find(|p| p.domid == domid).map_or(first.access, |p| p.access);
        // A caller that acts for another domain may do what either may.
        let may = |domid| match need {
            Need::Read => access(domid).reads(),
            Need::Write => access(domid).writes(),
            Need::Own => false,
        };
        may(self.domid) || self.target.is_some_and(may)
    }

    /// The permissions of a node that the caller creates below a node with the permissions `above`:
    /// the same, but the caller owns the new node.
    pub fn inherit(self, above: &Perms) -> Perms {
        if self.is_privileged() || above.first().is_none_or(|first| first.domid == self.domid) {
            return above.clone();
        }
        let own =
            |(i, p): (usize, &Permission)| if i == 0 { Permission { domid: self.domid, ..*p } } else { *p };
        above.iter().enumerate().map(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &[u8]) -> Vec<Permission> {
        Permission::parse_list(text).unwrap()
    }

    #[test]
    fn owner_default_and_named() {
        let guest = |domid| Caller { domid: DomId(domid), target: None };
        let perms = list(b"r3\0b4\0n5\0");
        for need in [Need::Read, Need::Write, Need::Own] {
            assert!(guest(0).may(need, &perms) && guest(3).may(need, &perms));
        }
        assert!(guest(4).may(Need::Read, &perms) && guest(4).may(Need::Write, &perms));
        assert!(!guest(4).may(Need::Own, &perms));
        assert!(!guest(5).may(Need::Read, &perms), "named entry wins over the default");
        assert!(guest(6).may(Need::Read, &perms) && !guest(6).may(Need::Write, &perms));
    }

    #[test]
    fn a_target_lends_its_rights_but_not_domain_0s() {
        let perms = list(b"n3\0");
        assert!(Caller { domid: DomId(9), target: Some(DomId(3)) }.may(Need::Own, &perms));
        assert!(!Caller { domid: DomId(9), target: Some(DomId(4)) }.may(Need::Read, &perms));
        let (both, perms) = (Caller { domid: DomId(9), target: Some(DomId(4)) }, list(b"n3\0r9\0w4\0"));
        assert!(
            both.may(Need::Read, &perms) && both.may(Need::Write, &perms) && !both.may(Need::Own, &perms)
        );
    }

    #[test]
    fn a_guests_new_node_is_its_own() {
        let perms = list(b"n0\0b4\0");
        let perms: Perms = perms.into();
        let made = Caller { domid: DomId(4), target: None }.inherit(&perms);
        assert_eq!(*made, list(b"n4\0b4\0"));
        assert_eq!(Caller { domid: DomId(0), target: None }.inherit(&perms), perms);
    }
}
