//! The client: one request at a time over a stream of bytes, with watch events in between.
//!
//! ```text
//!   client.read(path) ──► request ──► Transport::send
//!                         reply   ◄── Transport::recv ──┬── reply to this request  ──► the caller
//!                                                       └── watch event            ──► queue ──► next_event
//! ```
//! It works over a socket to xenstored and over `/dev/xen/xenbus`.
//!
//! xenstore itself is trusted with the keys that it stores, but not with memory: lengths are
//! checked before anything is allocated, and an answer that violates the protocol ends the use of
//! the connection. A domain that writes below a watched node chooses the paths of its events, so
//! only one event per watch is kept, whatever was changed: if there were several it names the
//! watched node. Only where this process and the toolstack are the only writers
//! ([`Client::watch_each`]) is each path kept, up to a limit. The *values* come from other domains:
//! parse them as hostile, see [`crate::xenbus::device`].

use super::codec::{self, Parser};
use super::error::{Cause, Operation, XsError};
use super::path;
use super::permission::Permission;
use crate::units::{DomId, EvtchnPort};
use crate::wire::xs::{Errno, MsgType, PAYLOAD_MAX, TX_NONE};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

/// A stream of bytes to and from xenstore.
pub trait Transport {
    /// The error of a failed transfer. A closed connection is an error, too.
    type Error: fmt::Display;

    /// Sends all bytes. They are always whole messages, as `/dev/xen/xenbus` requires.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Receives at least one byte, and waits for it up to `wait` (`None`: no timeout). `Ok(0)`:
    /// nothing came in that time.
    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error>;
}

/// A watched node, or a node below it, has changed: read it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchEvent {
    /// The node that changed, as a relative path if the watch has one. In the first event after
    /// [`Client::watch`] it is the watched node itself.
    pub path: String,
    /// The token of the watch.
    pub token: String,
}

/// Largest number of events of one watch of [`Client::watch_each`] that are kept; beyond that, one
/// for the watched node replaces all.
const EACH_MAX: usize = 256;
/// Number of times a transaction is tried before its conflict is returned to the caller.
const TRANSACTION_ATTEMPTS: u32 = 1000;
/// Number of times a long directory is read again because it changed meanwhile.
const DIRECTORY_ATTEMPTS: u32 = 100;

/// A watch that was set.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Watch {
    path: String,
    /// Each changed path is kept, instead of the watched node's only.
    each: bool,
}

/// An event that was not taken yet, and the path of its watch.
#[derive(Debug)]
struct Waiting {
    event: WatchEvent,
    watched: String,
}

/// A connection to xenstore.
///
/// The server knows the domain of the connection. A path that does not begin with a slash is
/// relative to that domain's home.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    input: Parser,
    events: VecDeque<Waiting>,
    /// The watches by token, as they were set.
    watches: BTreeMap<String, Vec<Watch>>,
    last_req_id: u32,
    /// Set once the stream cannot be parsed any more.
    lost: bool,
}

impl<T: Transport> Client<T> {
    /// Uses a connected transport.
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            input: Parser::new(),
            events: VecDeque::new(),
            watches: BTreeMap::new(),
            last_req_id: 0,
            lost: false,
        }
    }

    /// The transport, to wait for it together with other descriptors. When it is readable, call
    /// [`Client::next_event`] with a wait of zero until it returns `None`.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The value of a node.
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, XsError> {
        self.outside().read(path)
    }

    /// The value of a node. `None`: there is no such node.
    pub fn read_if_there(&mut self, path: &str) -> Result<Option<Vec<u8>>, XsError> {
        self.outside().read_if_there(path)
    }

    /// Sets the value of a node, which is created if it does not exist.
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> Result<(), XsError> {
        self.outside().write(path, value)
    }

    /// Creates a node, if it does not exist.
    pub fn mkdir(&mut self, path: &str) -> Result<(), XsError> {
        self.outside().mkdir(path)
    }

    /// Removes a node and all below it. A missing node is no error; a missing parent is.
    pub fn rm(&mut self, path: &str) -> Result<(), XsError> {
        self.outside().rm(path)
    }

    /// The names of a node's children.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, XsError> {
        self.outside().directory(path)
    }

    /// The permissions of a node.
    pub fn get_perms(&mut self, path: &str) -> Result<Vec<Permission>, XsError> {
        self.outside().get_perms(path)
    }

    /// Sets the permissions of a node. The first entry is the owner and the default.
    pub fn set_perms(&mut self, path: &str, perms: &[Permission]) -> Result<(), XsError> {
        self.outside().set_perms(path, perms)
    }

    /// Makes several changes in one transaction: all become visible together, or none.
    ///
    /// `body` runs again if it conflicts with another change, so it must have no other effects. If
    /// it fails, nothing is changed.
    pub fn transaction<R>(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'_, T>) -> Result<R, XsError>,
    ) -> Result<R, XsError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let started =
                self.request(Operation::TransactionStart, "", TX_NONE, MsgType::TransactionStart, &[b"\0"])?;
            let id = codec::exactly(&started).and_then(|[id]| codec::decimal(id));
            let id = id.and_then(|id| u32::try_from(id).ok()).filter(|&id| id != TX_NONE);
            let Some(id) = id else {
                return Err(self.lose(Operation::TransactionStart, "", "a transaction without a number"));
            };
            let result = body(&mut Transaction { client: self, id });
            let flag: &[u8] = if result.is_ok() { b"T\0" } else { b"F\0" };
            let ended = self.request(Operation::TransactionEnd, "", id, MsgType::TransactionEnd, &[flag]);
            match (result, ended) {
                (Err(e), _) => return Err(e),
                (Ok(value), Ok(_)) => return Ok(value),
                (Ok(_), Err(e)) if e.errno() == Some(Errno::Eagain) && attempts < TRANSACTION_ATTEMPTS => {}
                (Ok(_), Err(e)) => return Err(e),
            }
        }
    }

    /// Watches a node and all below it. The watch fires once at once. At most one event is kept; if
    /// there were several changes it names the watched node.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        self.set_watch(path, token, false)
    }

    /// Like [`watch`](Self::watch), but each changed node has an event of its own. Use it for a
    /// node below which no peer may write. If very many are waiting, one for the watched node
    /// replaces them.
    pub fn watch_each(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        self.set_watch(path, token, true)
    }

    fn set_watch(&mut self, path: &str, token: &str, each: bool) -> Result<(), XsError> {
        // This comes first, since Linux may deliver the first event before the reply.
        let of_token = self.watches.entry(token.into()).or_default();
        let known = of_token.iter().any(|w| w.path == path);
        if !known {
            of_token.push(Watch { path: path.into(), each });
        }
        let set = self.watch_request(Operation::Watch, MsgType::Watch, path, token);
        if set.is_err() && !known {
            self.forget_watch(path, token);
        }
        set
    }

    /// Ends a watch, and drops its waiting events.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        self.watch_request(Operation::Unwatch, MsgType::Unwatch, path, token)?;
        self.forget_watch(path, token);
        Ok(())
    }

    fn forget_watch(&mut self, path: &str, token: &str) {
        if let Some(of_token) = self.watches.get_mut(token) {
            of_token.retain(|w| w.path != path);
            if of_token.is_empty() {
                self.watches.remove(token);
            }
        }
        self.events.retain(|w| w.event.token != token || w.watched != path);
    }

    /// Ends all watches and transactions.
    pub fn reset_watches(&mut self) -> Result<(), XsError> {
        self.request(Operation::ResetWatches, "", TX_NONE, MsgType::ResetWatches, &[b"\0"])?;
        self.watches.clear();
        self.events.clear();
        Ok(())
    }

    /// Whether an event has arrived already, together with a reply. It is not in the transport any
    /// more, so the transport's descriptor does not wake for it: check this before you sleep.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || self.input.has_message()
    }

    /// Number of events that have arrived and were not taken.
    pub fn nr_waiting(&self) -> usize {
        self.events.len()
    }

    /// The next event of any watch. `None`: none came in that time (`wait` of `None`: no timeout).
    pub fn next_event(&mut self, wait: Option<Duration>) -> Result<Option<WatchEvent>, XsError> {
        self.next_event_where(wait, |_| true)
    }

    /// The next event that `wanted` accepts; the others stay for later calls.
    pub fn next_event_where(
        &mut self,
        wait: Option<Duration>,
        wanted: impl Fn(&WatchEvent) -> bool,
    ) -> Result<Option<WatchEvent>, XsError> {
        if let Some(at) = self.events.iter().position(|w| wanted(&w.event)) {
            return Ok(self.events.remove(at).map(|w| w.event));
        }
        loop {
            let Some(message) = self.receive(Operation::NextEvent, "", wait)? else { return Ok(None) };
            if message.header.msg_type != MsgType::WatchEvent.raw() {
                return Err(self.lose(Operation::NextEvent, "", "a reply to nothing"));
            }
            let event = self.event(&message.payload)?;
            if wanted(&event) && self.watch_of(&event).is_some() {
                return Ok(Some(event));
            }
            self.keep(event);
        }
    }

    /// The path of a domain's home.
    pub fn get_domain_path(&mut self, domid: DomId) -> Result<String, XsError> {
        let operation = Operation::GetDomainPath;
        let domid = format!("{}\0", domid.0);
        let reply = self.request(operation, "", TX_NONE, MsgType::GetDomainPath, &[domid.as_bytes()])?;
        match codec::exactly(&reply).and_then(|[home]| path::check(home).ok()) {
            Some(home) => Ok(home.into()),
            None => Err(self.lose(operation, "", "a home that is no path")),
        }
    }

    /// Introduces a domain, with the page and the channel of its own ring to xenstore. Domain 0
    /// only.
    pub fn introduce(&mut self, domid: DomId, gfn: u64, channel: EvtchnPort) -> Result<(), XsError> {
        let body = format!("{}\0{gfn}\0{}\0", domid.0, channel.0);
        self.request(Operation::Introduce, "", TX_NONE, MsgType::Introduce, &[body.as_bytes()]).map(drop)
    }

    /// Releases a domain. Domain 0 only.
    pub fn release(&mut self, domid: DomId) -> Result<(), XsError> {
        let domid = format!("{}\0", domid.0);
        self.request(Operation::Release, "", TX_NONE, MsgType::Release, &[domid.as_bytes()]).map(drop)
    }

    /// Whether a domain is introduced.
    pub fn is_domain_introduced(&mut self, domid: DomId) -> Result<bool, XsError> {
        let domid = format!("{}\0", domid.0);
        let operation = Operation::IsDomainIntroduced;
        let reply = self.request(operation, "", TX_NONE, MsgType::IsDomainIntroduced, &[domid.as_bytes()])?;
        match &*reply {
            b"T\0" => Ok(true),
            b"F\0" => Ok(false),
            _ => Err(self.lose(operation, "", "neither T nor F")),
        }
    }

    fn outside(&mut self) -> Transaction<'_, T> {
        Transaction { client: self, id: TX_NONE }
    }

    fn watch_request(
        &mut self,
        operation: Operation,
        kind: MsgType,
        path: &str,
        token: &str,
    ) -> Result<(), XsError> {
        let fail = |cause| XsError { operation, path: path.into(), cause };
        if !path::SPECIAL.contains(&path) {
            path::check(path.as_bytes()).map_err(|e| fail(Cause::BadPath(e)))?;
        }
        if token.contains('\0') {
            return Err(fail(Cause::NulInToken));
        }
        let parts = [path.as_bytes(), b"\0", token.as_bytes(), b"\0"];
        self.request(operation, path, TX_NONE, kind, &parts).map(drop)
    }

    /// Sends a request and waits for its reply's payload. Events that arrive first are kept.
    fn request(
        &mut self,
        operation: Operation,
        path: &str,
        tx: u32,
        kind: MsgType,
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, XsError> {
        let fail = |cause| XsError { operation, path: path.into(), cause };
        let len_bytes = parts.iter().map(|p| p.len()).sum();
        if len_bytes > PAYLOAD_MAX {
            return Err(fail(Cause::TooLong { len_bytes }));
        }
        if self.lost {
            return Err(fail(Cause::Connection(
                "the connection was lost earlier; restart this program".into(),
            )));
        }
        self.last_req_id = self.last_req_id.wrapping_add(1).max(1);
        let req_id = self.last_req_id;
        let mut bytes = vec![];
        codec::encode(&mut bytes, kind.raw(), req_id, tx, parts);
        if let Err(e) = self.transport.send(&bytes) {
            self.lost = true;
            return Err(fail(Cause::Connection(e.to_string())));
        }
        loop {
            let Some(message) = self.receive(operation, path, None)? else { continue };
            let header = message.header;
            // Linux answers WATCH and UNWATCH in its own driver, without the request's number.
            let unnumbered = header.req_id == 0 && matches!(kind, MsgType::Watch | MsgType::Unwatch);
            match MsgType::from_raw(header.msg_type) {
                Some(MsgType::WatchEvent) => {
                    let event = self.event(&message.payload)?;
                    self.keep(event);
                }
                Some(MsgType::Error) if header.req_id == req_id || unnumbered => {
                    return match Errno::from_payload(&message.payload) {
                        Some(errno) => Err(fail(Cause::Refused(errno))),
                        None => Err(fail(Cause::BadReply("an error without a known name"))),
                    };
                }
                Some(got) if got == kind && (header.req_id == req_id || unnumbered) => {
                    return Ok(message.payload);
                }
                _ => return Err(self.lose(operation, path, "a reply to another request")),
            }
        }
    }

    /// The next message. `None`: nothing came in that time.
    fn receive(
        &mut self,
        operation: Operation,
        path: &str,
        wait: Option<Duration>,
    ) -> Result<Option<codec::Message>, XsError> {
        loop {
            match self.input.next() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(_) => return Err(self.lose(operation, path, "a message of more than 4096 bytes")),
            }
            let mut buf = [0; PAYLOAD_MAX];
            match self.transport.recv(&mut buf, wait) {
                Ok(0) => return Ok(None),
                Ok(n) => self.input.push(buf.get(..n).unwrap_or(&buf)),
                Err(e) => {
                    self.lost = true;
                    let cause = Cause::Connection(e.to_string());
                    return Err(XsError { operation, path: path.into(), cause });
                }
            }
        }
    }

    fn event(&mut self, payload: &[u8]) -> Result<WatchEvent, XsError> {
        let text = |bytes: &[u8]| core::str::from_utf8(bytes).ok().map(String::from);
        let event = codec::exactly(payload)
            .and_then(|[path, token]| Some(WatchEvent { path: text(path)?, token: text(token)? }));
        event.ok_or_else(|| self.lose(Operation::NextEvent, "", "a malformed watch event"))
    }

    /// The watch of an event. None: it was ended.
    fn watch_of(&self, event: &WatchEvent) -> Option<&Watch> {
        let of_token = self.watches.get(&event.token)?;
        let at_or_above = |w: &&Watch| path::levels_below(&event.path, &w.path).is_some();
        // When a node above the watched one is removed, implementations of xenstored differ in how
        // they name it.
        of_token.iter().filter(at_or_above).max_by_key(|w| w.path.len()).or(of_token.first())
    }

    fn keep(&mut self, event: WatchEvent) {
        let Some(Watch { path: watched, each }) = self.watch_of(&event).cloned() else { return };
        let of_watch = |w: &Waiting| w.event.token == event.token && w.watched == watched;
        if each {
            if self.events.iter().any(|w| w.event == event) {
                return;
            }
            if self.events.iter().filter(|w| of_watch(w)).count() < EACH_MAX {
                return self.events.push_back(Waiting { event, watched });
            }
            let first = self.events.iter().position(of_watch);
            let mut at = 0;
            self.events.retain(|w| {
                at += 1;
                !of_watch(w) || Some(at - 1) == first
            });
        }
        match self.events.iter_mut().find(|w| w.event.token == event.token && w.watched == watched) {
            Some(waiting) if waiting.event.path == event.path => {}
            Some(waiting) => waiting.event.path.clone_from(&waiting.watched),
            None => self.events.push_back(Waiting { event, watched }),
        }
    }

    fn lose(&mut self, operation: Operation, path: &str, what: &'static str) -> XsError {
        self.lost = true;
        XsError { operation, path: path.into(), cause: Cause::BadReply(what) }
    }
}

/// A transaction, see [`Client::transaction`].
#[derive(Debug)]
pub struct Transaction<'a, T> {
    client: &'a mut Client<T>,
    id: u32,
}

impl<T: Transport> Transaction<'_, T> {
    /// Like [`Client::read`].
    pub fn read(&mut self, path: &str) -> Result<Vec<u8>, XsError> {
        self.on_node(Operation::Read, MsgType::Read, path, &[])
    }

    /// Like [`Client::read_if_there`].
    pub fn read_if_there(&mut self, path: &str) -> Result<Option<Vec<u8>>, XsError> {
        match self.read(path) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Like [`Client::write`].
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> Result<(), XsError> {
        self.on_node(Operation::Write, MsgType::Write, path, &[value.as_ref()]).map(drop)
    }

    /// Like [`Client::mkdir`].
    pub fn mkdir(&mut self, path: &str) -> Result<(), XsError> {
        self.on_node(Operation::Mkdir, MsgType::Mkdir, path, &[]).map(drop)
    }

    /// Like [`Client::rm`].
    pub fn rm(&mut self, path: &str) -> Result<(), XsError> {
        self.on_node(Operation::Rm, MsgType::Rm, path, &[]).map(drop)
    }

    /// Like [`Client::rm`], but a missing parent is no error.
    pub fn rm_if_there(&mut self, path: &str) -> Result<(), XsError> {
        match self.rm(path) {
            Err(e) if e.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Like [`Client::directory`].
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, XsError> {
        let names = match self.on_node(Operation::Directory, MsgType::Directory, path, &[]) {
            Err(e) if e.errno() == Some(Errno::E2big) => self.directory_in_parts(path)?,
            other => other?,
        };
        if names.is_empty() {
            return Ok(vec![]);
        }
        let list = codec::strings(&names).map(|names| {
            let text = |n| core::str::from_utf8(n).ok().map(String::from);
            names.map(text).collect::<Option<Vec<_>>>()
        });
        list.flatten().ok_or_else(|| self.client.lose(Operation::Directory, path, "a malformed directory"))
    }

    /// Like [`Client::get_perms`].
    pub fn get_perms(&mut self, path: &str) -> Result<Vec<Permission>, XsError> {
        let reply = self.on_node(Operation::GetPerms, MsgType::GetPerms, path, &[])?;
        let list = Permission::parse_list(&reply);
        list.ok_or_else(|| self.client.lose(Operation::GetPerms, path, "malformed permissions"))
    }

    /// Like [`Client::set_perms`].
    pub fn set_perms(&mut self, path: &str, perms: &[Permission]) -> Result<(), XsError> {
        let list = Permission::list_to_bytes(perms);
        self.on_node(Operation::SetPerms, MsgType::SetPerms, path, &[&list]).map(drop)
    }

    /// Reads a directory that does not fit in one message, part by part, and from the start again
    /// if it changed meanwhile.
    fn directory_in_parts(&mut self, path: &str) -> Result<Vec<u8>, XsError> {
        let operation = Operation::Directory;
        for _ in 0..DIRECTORY_ATTEMPTS {
            let mut names: Vec<u8> = vec![];
            let mut generation: Option<Vec<u8>> = None;
            loop {
                let offset = format!("{}\0", names.len());
                let part = self.on_node(operation, MsgType::DirectoryPart, path, &[offset.as_bytes()])?;
                let Some((now, body)) = codec::string_and_rest(&part) else {
                    return Err(self.client.lose(operation, path, "a malformed part of a directory"));
                };
                if *generation.get_or_insert_with(|| now.to_vec()) != now {
                    break;
                }
                let last = body == b"\0" || body.ends_with(b"\0\0");
                names.extend_from_slice(if last { &body[..body.len() - 1] } else { body });
                if last {
                    return Ok(names);
                }
                if body.is_empty() {
                    return Err(self.client.lose(operation, path, "an empty part of a directory"));
                }
            }
        }
        Err(XsError { operation, path: path.into(), cause: Cause::Refused(Errno::Eagain) })
    }

    fn on_node(
        &mut self,
        operation: Operation,
        kind: MsgType,
        path: &str,
        rest: &[&[u8]],
    ) -> Result<Vec<u8>, XsError> {
        let special = path::SPECIAL.contains(&path) && matches!(kind, MsgType::GetPerms | MsgType::SetPerms);
        if !special {
            let checked = path::check(path.as_bytes());
            checked.map_err(|e| XsError { operation, path: path.into(), cause: Cause::BadPath(e) })?;
        }
        let mut parts = vec![path.as_bytes(), b"\0"];
        parts.extend_from_slice(rest);
        self.client.request(operation, path, self.id, kind, &parts)
    }
}

// There is no unsafe code here, and the tests are too slow for Miri.
#[cfg(all(test, not(miri)))]
mod tests;
