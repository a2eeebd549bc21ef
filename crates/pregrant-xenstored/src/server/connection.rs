//! One client's connection: its input, its output, its transactions.

use super::transaction::Transaction;
use super::watch::{PendingEvents, Watches};
use pregrant::DomId;
use pregrant::wire::xs::{MsgType, TX_NONE, WATCH_EVENT_REQ_ID};
use pregrant::xenstore::codec::{self, Message, Parser};
use std::collections::BTreeMap;

/// The connection of a client.
#[derive(Debug)]
pub struct Connection {
    /// The domain of the client.
    pub domid: DomId,
    /// Bytes received.
    pub input: Parser,
    /// Replies to be sent.
    pub replies: Vec<u8>,
    /// Watch events to be sent, after the replies.
    pub events: PendingEvents,
    /// Open transactions, by number.
    pub transactions: BTreeMap<u32, Transaction>,
    /// The stream cannot be parsed any more, or the domain is gone: send what is waiting, then
    /// close.
    pub ended: bool,
    last_transaction: u32,
}

impl Connection {
    /// A connection of a domain.
    pub fn new(domid: DomId) -> Self {
        Self {
            domid,
            input: Parser::new(),
            replies: Vec::new(),
            events: PendingEvents::default(),
            transactions: BTreeMap::new(),
            ended: false,
            last_transaction: TX_NONE,
        }
    }

    /// A number for a new transaction: not 0, and not in use.
    pub fn new_transaction_number(&mut self) -> u32 {
        loop {
            self.last_transaction = self.last_transaction.wrapping_add(1);
            let number = self.last_transaction;
            if number != TX_NONE && !self.transactions.contains_key(&number) {
                return number;
            }
        }
    }

    /// Whether there is anything to be sent.
    pub fn has_output(&self) -> bool {
        !self.replies.is_empty() || !self.events.is_empty()
    }

    /// The next request, if there is one and there is room for its reply.
    pub fn next_request(&mut self, buffered_bytes: usize) -> Option<Message> {
        if self.ended || self.replies.len() >= buffered_bytes {
            return None;
        }
        match self.input.next() {
            Ok(message) => message,
            Err(_) => {
                self.ended = true;
                None
            }
        }
    }

    /// Moves output to `out`; events only while `out` is shorter than the limit.
    pub fn take_output(&mut self, out: &mut Vec<u8>, watches: &Watches, buffered_bytes: usize) {
        out.extend_from_slice(&self.replies);
        codec::empty(&mut self.replies);
        while out.len() < buffered_bytes {
            let Some((key, path)) = self.events.pop() else { break };
            let Some(watch) = watches.get(key) else { continue };
            // A change above the watched node cannot be named relative to it, so its full path is
            // used.
            let shown = path.get(watch.relative_to_bytes..).unwrap_or(&path);
            let parts = [shown.as_bytes(), b"\0", &watch.token, b"\0"];
            codec::encode(out, MsgType::WatchEvent.raw(), WATCH_EVENT_REQ_ID, TX_NONE, &parts);
        }
    }
}
