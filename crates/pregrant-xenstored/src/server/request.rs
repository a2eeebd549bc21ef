//! Executes each request (docs/protocol 8.4).

use super::domain::domids;
use super::transaction::Transaction;
use super::view::{Edit, View};
use super::watch::Watch;
use super::{ConnId, Server};
use pregrant::wire::xs::{Errno, Header, MsgType, PAYLOAD_MAX, SERVER_FEATURE_WATCHDEPTH, TX_NONE};
use pregrant::xenstore::codec::{self, Message};
use pregrant::xenstore::path;
use pregrant::xenstore::permission::Permission;
use std::sync::Arc;

/// The payload of a reply without a result.
pub const OK: &[u8] = b"OK\0";

impl Server {
    /// Executes a request and queues its reply.
    pub(super) fn request(&mut self, conn: ConnId, message: &Message) {
        let Header { msg_type, req_id, tx_id, .. } = message.header;
        let result = match MsgType::from_raw(msg_type) {
            Some(kind) => self.answer(conn, kind, tx_id, &message.payload),
            None => Err(Errno::Enosys),
        };
        let result = result.and_then(|r| if r.len() > PAYLOAD_MAX { Err(Errno::E2big) } else { Ok(r) });
        let Some(c) = self.connections.get_mut(&conn) else { return };
        match result {
            Ok(reply) => codec::encode(&mut c.replies, msg_type, req_id, tx_id, &[&reply]),
            Err(errno) => codec::encode_error(&mut c.replies, &message.header, errno),
        }
        self.ready.insert(conn);
    }

    fn answer(&mut self, conn: ConnId, kind: MsgType, tx: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        match kind {
            MsgType::Read => {
                let at = self.one_node(conn, payload)?;
                self.view(conn, tx, |view| view.read(&at))
            }
            MsgType::Directory => {
                let at = self.one_node(conn, payload)?;
                self.view(conn, tx, |view| view.directory(&at)).map(|(names, _)| names)
            }
            MsgType::DirectoryPart => {
                // The NUL at the end is optional here.
                let (at, offset) = codec::string_and_rest(payload).ok_or(Errno::Einval)?;
                let at = self.node(conn, at)?;
                let offset =
                    codec::decimal(offset.strip_suffix(b"\0").unwrap_or(offset)).ok_or(Errno::Einval)?;
                let (names, generation) = self.view(conn, tx, |view| view.directory(&at))?;
                Ok(directory_part(&names, generation, usize::try_from(offset).unwrap_or(usize::MAX)))
            }
            MsgType::GetPerms => {
                let [at] = codec::exactly(payload).ok_or(Errno::Einval)?;
                if let Some(perms) = core::str::from_utf8(at).ok().and_then(|at| self.special.get(at)) {
                    return Ok(Permission::list_to_bytes(perms));
                }
                let at = self.node(conn, at)?;
                self.view(conn, tx, |view| view.perms(&at)).map(|perms| Permission::list_to_bytes(&perms))
            }
            MsgType::SetPerms => self.set_perms(conn, tx, payload),
            MsgType::Write => {
                let (at, value) = codec::string_and_rest(payload).ok_or(Errno::Einval)?;
                let at = self.node(conn, at)?;
                self.edit(conn, tx, Edit::Write(at, value.to_vec()))
            }
            MsgType::Mkdir => {
                let at = self.one_node(conn, payload)?;
                self.edit(conn, tx, Edit::Mkdir(at))
            }
            MsgType::Rm => {
                let at = self.one_node(conn, payload)?;
                self.edit(conn, tx, Edit::Rm(at))
            }
            MsgType::Watch => self.watch(conn, payload),
            MsgType::Unwatch => self.unwatch(conn, payload),
            MsgType::ResetWatches => {
                nothing(payload)?;
                self.drop_watches_and_transactions(conn);
                Ok(OK.to_vec())
            }
            MsgType::TransactionStart => {
                nothing(payload)?;
                self.transaction_start(conn, tx)
            }
            MsgType::TransactionEnd => self.transaction_end(conn, tx, payload),
            MsgType::GetDomainPath => {
                let [domid] = domids(payload)?;
                Ok(format!("{}\0", path::home(domid)).into_bytes())
            }
            MsgType::IsDomainIntroduced => {
                let [domid] = domids(payload)?;
                Ok(if self.is_introduced(domid) { b"T\0" } else { b"F\0" }.to_vec())
            }
            MsgType::GetFeature => self.get_feature(conn, payload),
            // Only the server sends these.
            MsgType::WatchEvent | MsgType::Error => Err(Errno::Enosys),
            _ => {
                self.privileged(conn)?;
                self.answer_domain_0(kind, payload)
            }
        }
    }

    /// Executes the requests that only domain 0 may make.
    fn answer_domain_0(&mut self, kind: MsgType, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        match kind {
            MsgType::Introduce => self.introduce_request(without_reserved(payload))?,
            MsgType::Release => {
                let [domid] = domids(payload)?;
                self.release(domid)?;
            }
            MsgType::Resume => {
                let [domid] = domids(payload)?;
                self.known(domid)?;
            }
            MsgType::SetTarget => {
                let [domid, target] = domids(payload)?;
                self.set_target(domid, target)?;
            }
            MsgType::SetFeature => self.set_feature(payload)?,
            MsgType::SetQuota => self.set_quota(payload)?,
            MsgType::GetQuota => return self.get_quota(payload),
            MsgType::Control => return self.control(payload),
            _ => return Err(Errno::Enosys),
        }
        Ok(OK.to_vec())
    }

    fn set_perms(&mut self, conn: ConnId, tx: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (at, list) = codec::string_and_rest(payload).ok_or(Errno::Einval)?;
        let perms = Permission::parse_list(without_reserved(list)).ok_or(Errno::Einval)?;
        if let Some(of_special) = core::str::from_utf8(at).ok().and_then(|at| self.special.get(at)) {
            let owner = of_special.first().map(|p| p.domid);
            self.privileged(conn)?;
            // The special paths always belong to domain 0.
            if perms.first().map(|p| p.domid) != owner {
                return Err(Errno::Eperm);
            }
            if let Some((_, slot)) = self.special.iter_mut().find(|(name, _)| name.as_bytes() == at) {
                *slot = perms.into();
            }
            return Ok(OK.to_vec());
        }
        let at = self.node(conn, at)?;
        self.edit(conn, tx, Edit::SetPerms(at, perms.into()))
    }

    fn watch(&mut self, conn: ConnId, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let payload = without_reserved(payload);
        let (at, token, depth) = match codec::exactly(payload) {
            Some([at, token, depth]) => (at, token, Some(codec::decimal(depth).ok_or(Errno::Einval)?)),
            None => codec::exactly(payload).map(|[at, token]| (at, token, None)).ok_or(Errno::Einval)?,
        };
        let depth = depth.map(|d| usize::try_from(d).unwrap_or(usize::MAX));
        let (path, relative_to_bytes) = self.watched(conn, at)?;
        let caller = self.caller(conn);
        let knows_depth = self.features_of(caller.domid) & SERVER_FEATURE_WATCHDEPTH != 0;
        // A special path is not a tree: a depth of 1 asks for the domain's number there, and others
        // are invalid.
        if depth.is_some_and(|d| !knows_depth || path::is_special(&path) && d != 1) {
            return Err(Errno::Einval);
        }
        if self.usage(caller.domid).1 >= self.limits_of(caller.domid).watches {
            return Err(Errno::Enospc);
        }
        let watch = Watch { path: path.clone(), token: token.to_vec(), relative_to_bytes, depth };
        let key = self.watches.add(conn, watch)?;
        self.count(caller.domid, |used| used.watches += 1);
        // It fires once at once, whether the node exists or not, so no change before the watch is
        // missed.
        self.queue_event(key, &path);
        Ok(OK.to_vec())
    }

    fn unwatch(&mut self, conn: ConnId, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let [at, token] = codec::exactly(without_reserved(payload)).ok_or(Errno::Einval)?;
        let (path, _) = self.watched(conn, at)?;
        let key = self.watches.remove(conn, &path, token).ok_or(Errno::Enoent)?;
        if let Some(c) = self.connections.get_mut(&conn) {
            c.events.forget(key);
        }
        let domid = self.caller(conn).domid;
        self.count(domid, |used| used.watches -= 1.min(used.watches));
        Ok(OK.to_vec())
    }

    fn transaction_start(&mut self, conn: ConnId, tx: u32) -> Result<Vec<u8>, Errno> {
        if tx != TX_NONE {
            let open = self.connections.get(&conn).is_some_and(|c| c.transactions.contains_key(&tx));
            return Err(if open { Errno::Ebusy } else { Errno::Enoent });
        }
        let caller = self.caller(conn);
        if self.usage(caller.domid).2 >= self.limits_of(caller.domid).transactions {
            return Err(Errno::Enospc);
        }
        let c = self.connections.get_mut(&conn).ok_or(Errno::Eio)?;
        let number = c.new_transaction_number();
        c.transactions.insert(number, Transaction::new(&self.tree));
        self.count(caller.domid, |used| used.transactions += 1);
        Ok(format!("{number}\0").into_bytes())
    }

    fn transaction_end(&mut self, conn: ConnId, tx: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let commit = match payload {
            b"T\0" => true,
            b"F\0" => false,
            _ => return Err(Errno::Einval),
        };
        let caller = self.caller(conn);
        let limits = self.limits_of(caller.domid);
        let c = self.connections.get_mut(&conn).ok_or(Errno::Eio)?;
        let transaction = c.transactions.remove(&tx).ok_or(Errno::Enoent)?;
        self.count(caller.domid, |used| used.transactions -= 1.min(used.transactions));
        if commit {
            let changes = transaction.commit(&mut self.tree, caller, &limits)?;
            self.fire(&changes);
        }
        Ok(OK.to_vec())
    }

    fn view<R>(
        &mut self,
        conn: ConnId,
        tx: u32,
        f: impl FnOnce(&mut View<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let caller = self.caller(conn);
        let limits = &self.limits_of(caller.domid);
        if tx == TX_NONE {
            let mut changes = vec![];
            let result =
                f(&mut View { tree: &mut self.tree, caller, limits, seen: None, changes: &mut changes });
            self.fire(&changes);
            result
        } else {
            let c = self.connections.get_mut(&conn).ok_or(Errno::Eio)?;
            c.transactions.get_mut(&tx).ok_or(Errno::Enoent)?.with_view(caller, limits, f)
        }
    }

    fn edit(&mut self, conn: ConnId, tx: u32, edit: Edit) -> Result<Vec<u8>, Errno> {
        if tx == TX_NONE {
            self.view(conn, tx, |view| view.apply(&edit))?;
        } else {
            let caller = self.caller(conn);
            let limits = self.limits_of(caller.domid);
            let c = self.connections.get_mut(&conn).ok_or(Errno::Eio)?;
            c.transactions.get_mut(&tx).ok_or(Errno::Enoent)?.apply(caller, &limits, edit)?;
        }
        Ok(OK.to_vec())
    }

    /// Parses the payload of a request that names one node and nothing else.
    fn one_node(&self, conn: ConnId, payload: &[u8]) -> Result<String, Errno> {
        let [at] = codec::exactly(payload).ok_or(Errno::Einval)?;
        self.node(conn, at)
    }

    /// The absolute path of a node that a client named.
    fn node(&self, conn: ConnId, at: &[u8]) -> Result<String, Errno> {
        let at = path::check(at).map_err(|_| Errno::Einval)?;
        if path::is_special(at) {
            return Err(Errno::Einval);
        }
        let resolved = path::resolve(at, self.caller(conn).domid);
        if path::has_room(&resolved) { Ok(resolved) } else { Err(Errno::Einval) }
    }

    /// Resolves the path of a watch. Returns also the number of bytes that its events omit at the
    /// start of a path. Special paths are allowed; one that does not exist never fires.
    fn watched(&self, conn: ConnId, at: &[u8]) -> Result<(Arc<str>, usize), Errno> {
        if let Ok(special) = path::check(at)
            && path::is_special(special)
        {
            return Ok((special.into(), 0));
        }
        let resolved = self.node(conn, at)?;
        let relative_to_bytes = if at.starts_with(b"/") { 0 } else { resolved.len() - at.len() };
        Ok((resolved.into(), relative_to_bytes))
    }

    pub(super) fn privileged(&self, conn: ConnId) -> Result<(), Errno> {
        if self.caller(conn).is_privileged() { Ok(()) } else { Err(Errno::Eacces) }
    }
}

/// Returns a payload without the part after its last NUL, which is reserved for extensions and not
/// checked.
fn without_reserved(payload: &[u8]) -> &[u8] {
    payload.iter().rposition(|&b| b == 0).map_or(payload, |nul| &payload[..=nul])
}

/// Checks that a payload is one NUL, or nothing, as some clients send.
fn nothing(payload: &[u8]) -> Result<(), Errno> {
    if matches!(payload, b"" | b"\0") { Ok(()) } else { Err(Errno::Einval) }
}

/// A part of a directory's listing: the generation, as many whole names from `offset` on as fit,
/// and an empty name after the last of all.
fn directory_part(names: &[u8], generation: u64, offset: usize) -> Vec<u8> {
    let mut part = format!("{generation}\0").into_bytes();
    let mut rest = names.get(offset..).unwrap_or_default();
    // One byte stays free for the empty name.
    let room_bytes = PAYLOAD_MAX - 1;
    while let Some((name, after)) = codec::string_and_rest(rest) {
        if part.len() + name.len() + 1 > room_bytes {
            break;
        }
        part.extend_from_slice(name);
        part.push(0);
        rest = after;
    }
    if rest.is_empty() {
        part.push(0);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_directory_fit_and_end_in_an_empty_name() {
        let names: Vec<u8> = (0..2000).flat_map(|i| format!("name{i}\0").into_bytes()).collect();
        let (mut collected, mut offset) = (vec![], 0);
        loop {
            let part = directory_part(&names, 42, offset);
            assert!(part.len() <= PAYLOAD_MAX);
            let body = part.strip_prefix(b"42\0").unwrap();
            let last = body == b"\0" || body.ends_with(b"\0\0");
            let body = if last { &body[..body.len() - 1] } else { body };
            collected.extend_from_slice(body);
            offset += body.len();
            if last {
                break;
            }
        }
        assert_eq!(collected, names);
        assert_eq!(directory_part(b"", 1, 0), b"1\0\0");
        assert_eq!(directory_part(b"a\0", 1, 99), b"1\0\0");
        assert_eq!(directory_part(b"a\0", 1, usize::MAX), b"1\0\0");
    }
}
