//! Domains: which were introduced, what each may use, and what is removed when one is released.
//!
//! ```text
//!   SET_FEATURE ─► (features kept by number) ─► INTRODUCE ─► known: home, quotas, target ─► RELEASE ─► no trace
//! ```
//! A domain's number is reused later, so nothing of a released domain may stay. Its nodes are
//! removed wherever they are (if they became domain 0's, no quota would count them, and they would
//! accumulate: XSA-419), and its number is removed from all lists of permissions (XSA-322).
//!
//! What a client may do: all of this is for domain 0 only, except for asking for its own features,
//! for the path of a home, and whether a domain is introduced.

use super::quota::{Limits, NAMES};
use super::tree::Perms;
use super::view::{Change, ChangeKind};
use super::{ConnId, Server};
use pregrant::DomId;
use pregrant::wire::xs::{Errno, SERVER_FEATURE_WATCHDEPTH};
use pregrant::xenstore::codec;
use pregrant::xenstore::path;
use pregrant::xenstore::permission::{Access, Permission, parse_domid};
use std::collections::btree_map::Entry;

/// Features of this server beyond the oldest protocol. The other features are about rings, which
/// this server does not have.
const FEATURES: u32 = SERVER_FEATURE_WATCHDEPTH;

/// Why the server refused a call of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DomainError {
    /// The number is reserved by Xen (0x7FF0 and above).
    Reserved(DomId),
    /// The domain was never introduced, or was released.
    Unknown(DomId),
    /// Domain 0 cannot be released.
    Privileged,
}

impl core::fmt::Display for DomainError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Reserved(d) => write!(f, "xenstore: {} is not a domain's number; use one below 32752", d.0),
            Self::Unknown(d) => write!(f, "xenstore: {d} is not introduced; introduce it first"),
            Self::Privileged => f.write_str("xenstore: domain 0 cannot be released"),
        }
    }
}

impl core::error::Error for DomainError {}

impl From<DomainError> for Errno {
    fn from(error: DomainError) -> Self {
        match error {
            DomainError::Unknown(_) => Errno::Enoent,
            DomainError::Reserved(_) | DomainError::Privileged => Errno::Einval,
        }
    }
}

/// A domain that was introduced.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// The domain that this domain may also act for.
    pub target: Option<DomId>,
    /// The domain's quotas, which are copied from the defaults when the domain is introduced.
    pub limits: Limits,
}

impl Domain {
    /// A domain with these quotas.
    pub fn new(limits: Limits) -> Self {
        Self { target: None, limits }
    }
}

impl Server {
    /// Introduces a domain and creates its home `/local/domain/<domid>`, which it may read, and
    /// `data` and `error` in there, which it owns. Existing nodes of a toolstack stay as they are.
    /// Does nothing for a domain that is introduced already.
    pub fn introduce(&mut self, domid: DomId) -> Result<(), DomainError> {
        if domid >= DomId::SELF {
            return Err(DomainError::Reserved(domid));
        }
        if let Entry::Vacant(slot) = self.domains.entry(domid) {
            slot.insert(Domain::new(self.limits));
            self.make_home(domid);
            self.fire_special(path::INTRODUCE_DOMAIN, domid);
        }
        Ok(())
    }

    /// Releases a domain: its connections end, its home and all nodes that it owns are removed with
    /// everything below them, and no list of permissions names it any more.
    pub fn release(&mut self, domid: DomId) -> Result<(), DomainError> {
        if domid == DomId(0) {
            return Err(DomainError::Privileged);
        }
        self.domains.remove(&domid).ok_or(DomainError::Unknown(domid))?;
        self.features.remove(&domid);
        for domain in self.domains.values_mut() {
            domain.target = domain.target.filter(|&t| t != domid);
        }
        let ending: Vec<_> =
            self.connections.iter().filter(|(_, c)| c.domid == domid).map(|(&id, _)| id).collect();
        for conn in ending {
            self.drop_watches_and_transactions(conn);
            if let Some(c) = self.connections.get_mut(&conn) {
                c.ended = true;
                self.ready.insert(conn);
            }
        }
        let mut doomed = self.tree.find(|node| node.owner() == domid);
        doomed.push(path::home(domid));
        doomed.sort();
        // A node below another one of these may be gone already.
        for at in doomed {
            let perms_of = |at: &str| self.tree.get(at).map(|n| n.perms.clone());
            let readers = [perms_of(&at), path::parent(&at).and_then(perms_of), None];
            if let Some(removed) = self.tree.remove(&at) {
                self.fire(&[Change { path: at.into(), kind: ChangeKind::Removed(removed), readers }]);
            }
        }
        for at in self.tree.find(|node| node.perms.iter().any(|p| p.domid == domid)) {
            let Some(node) = self.tree.get(&at) else { continue };
            // The root cannot be removed; everything else that it owned is gone here.
            let owner = (node.owner() == domid).then_some(Permission::new(Access::None, DomId(0)));
            let named = node.perms.iter().copied().filter(|p| p.domid != domid);
            let perms = owner.into_iter().chain(named).collect();
            self.tree.set_perms(&at, perms);
        }
        for perms in self.special.values_mut() {
            *perms = perms.iter().copied().filter(|p| p.domid != domid).collect();
        }
        self.fire_special(path::RELEASE_DOMAIN, domid);
        Ok(())
    }

    /// Whether the domain is introduced.
    pub fn is_introduced(&self, domid: DomId) -> bool {
        self.domains.contains_key(&domid)
    }

    /// The domains that are introduced.
    pub fn domains(&self) -> impl Iterator<Item = DomId> {
        self.domains.keys().copied()
    }

    /// Creates the nodes that clients expect in a domain's home and that are missing.
    pub(super) fn make_home(&mut self, domid: DomId) {
        let home = path::home(domid);
        let perms = [Permission::new(Access::None, DomId(0)), Permission::new(Access::Read, domid)];
        let perms: Perms = perms[..if domid == DomId(0) { 1 } else { 2 }].into();
        let own: Perms = [Permission::new(Access::None, domid)].into();
        let domain_0s: Perms = [Permission::new(Access::None, DomId(0))].into();
        let number = format!("{}", domid.0);
        for (at, value, perms) in [
            ("/local".into(), "", &domain_0s),
            ("/local/domain".into(), "", &domain_0s),
            (String::from(&*home), "", &perms),
            (path::join(&home, "domid"), &*number, &perms),
            (path::join(&home, "data"), "", &own),
            (path::join(&home, "error"), "", &own),
        ] {
            if self.tree.get(&at).is_none() {
                self.tree.insert(&at, value.as_bytes(), perms.clone());
                let readers = [Some(perms.clone()), None, None];
                self.fire(&[Change { path: at.into(), kind: ChangeKind::Node, readers }]);
            }
        }
    }

    /// The quotas of a domain.
    pub(super) fn limits_of(&self, domid: DomId) -> Limits {
        match self.domains.get(&domid) {
            _ if domid == DomId(0) => self.limits.of_domain_0(),
            Some(domain) => domain.limits,
            None => self.limits,
        }
    }

    /// The server's features that a domain may use, as bits.
    pub(super) fn features_of(&self, domid: DomId) -> u32 {
        self.features.get(&domid).copied().unwrap_or(FEATURES)
    }

    pub(super) fn introduce_request(&mut self, payload: &[u8]) -> Result<(), Errno> {
        // Page and channel of the domain's ring are ignored: this server is only reached by
        // sockets.
        let [domid, gfn, channel] = codec::exactly(payload).ok_or(Errno::Einval)?;
        let domid = parse_domid(domid).filter(|&d| d != DomId(0)).ok_or(Errno::Einval)?;
        // The page's number is signed.
        let gfn = gfn.strip_prefix(b"-").unwrap_or(gfn);
        codec::decimal(gfn).and(codec::decimal(channel)).ok_or(Errno::Einval)?;
        Ok(self.introduce(domid)?)
    }

    pub(super) fn set_target(&mut self, domid: DomId, target: DomId) -> Result<(), Errno> {
        if target == DomId(0) {
            return Err(Errno::Einval);
        }
        self.known(target)?;
        self.domains.get_mut(&domid).ok_or(Errno::Enoent)?.target = Some(target);
        Ok(())
    }

    /// Returns the features of the calling domain. Domain 0 may name another one, if that is
    /// introduced or its features were set.
    pub(super) fn get_feature(&self, conn: ConnId, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let domid = match payload {
            b"" | b"\0" => self.caller(conn).domid,
            _ => {
                self.privileged(conn)?;
                let [domid] = domids(payload)?;
                if !self.features.contains_key(&domid) {
                    self.known(domid)?;
                }
                domid
            }
        };
        Ok(number(u64::from(self.features_of(domid))))
    }

    /// Sets the features of a domain, which must not be introduced yet.
    pub(super) fn set_feature(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let [domid, bits] = codec::exactly(payload).ok_or(Errno::Einval)?;
        let domid = parse_domid(domid).filter(|&d| d < DomId::SELF).ok_or(Errno::Einval)?;
        let bits = codec::decimal(bits).and_then(|b| u32::try_from(b).ok()).ok_or(Errno::Einval)?;
        if self.is_introduced(domid) {
            return Err(Errno::Ebusy);
        }
        if bits & !FEATURES != 0 {
            return Err(Errno::Einval);
        }
        self.features.insert(domid, bits);
        Ok(())
    }

    /// Returns the names of all quotas, the default of one, or a domain's value of one.
    pub(super) fn get_quota(&self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (limits, name) = match *words(payload)? {
            [] | [b""] => return Ok((NAMES.join(" ") + "\0").into_bytes()),
            [name] => (self.limits, name),
            [domid, name] => {
                let domid = parse_domid(domid).ok_or(Errno::Einval)?;
                self.known(domid)?;
                (self.limits_of(domid), name)
            }
            _ => return Err(Errno::Einval),
        };
        limits.get(name).map(number).ok_or(Errno::Einval)
    }

    /// Sets the default of a quota, or a domain's value.
    pub(super) fn set_quota(&mut self, payload: &[u8]) -> Result<(), Errno> {
        let value = |text| codec::decimal(text).ok_or(Errno::Einval);
        match *words(payload)? {
            [name, to] => self.limits.set(name, value(to)?),
            [domid, name, to] => match parse_domid(domid) {
                // Domain 0 has no quotas.
                None | Some(DomId(0)) => Err(Errno::Einval),
                Some(d) => self.domains.get_mut(&d).ok_or(Errno::Enoent)?.limits.set(name, value(to)?),
            },
            _ => Err(Errno::Einval),
        }
    }

    /// Executes a command to the server itself.
    pub(super) fn control(&mut self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let text = |lines: String| Ok(format!("{}\0", lines.trim_end()).into_bytes());
        match *words(payload)? {
            [b"help"] => text("check\nhelp\nquota [<domid> | set <name> <value>]".into()),
            [b"check"] if self.counts_are_right() => Ok(super::request::OK.to_vec()),
            [b"check"] => Err(Errno::Eio),
            [b"quota"] => {
                let value = |name: &str| self.limits.get(name.as_bytes()).unwrap_or_default();
                text(NAMES.iter().map(|name| format!("{name}: {}\n", value(name))).collect())
            }
            [b"quota", domid] => {
                let (nodes, watches, transactions) = self.usage(parse_domid(domid).ok_or(Errno::Einval)?);
                text(format!("nodes: {nodes}\nwatches: {watches}\ntransactions: {transactions}\n"))
            }
            [b"quota", b"set", name, value] => {
                self.limits.set(name, codec::decimal(value).ok_or(Errno::Einval)?)?;
                Ok(super::request::OK.to_vec())
            }
            _ => Err(Errno::Einval),
        }
    }

    pub(super) fn known(&self, domid: DomId) -> Result<(), Errno> {
        if self.is_introduced(domid) { Ok(()) } else { Err(Errno::Enoent) }
    }
}

/// Parses a payload of `N` domain numbers.
pub fn domids<const N: usize>(payload: &[u8]) -> Result<[DomId; N], Errno> {
    let words = codec::exactly::<N>(payload).ok_or(Errno::Einval)?;
    let mut domids = [DomId(0); N];
    for (domid, word) in domids.iter_mut().zip(words) {
        *domid = parse_domid(word).ok_or(Errno::Einval)?;
    }
    Ok(domids)
}

/// A reply that is a number.
fn number(value: u64) -> Vec<u8> {
    format!("{value}\0").into_bytes()
}

/// The strings of a payload; none for an empty one.
fn words(payload: &[u8]) -> Result<Vec<&[u8]>, Errno> {
    if payload.is_empty() {
        return Ok(vec![]);
    }
    codec::strings(payload).map(Iterator::collect).ok_or(Errno::Einval)
}
