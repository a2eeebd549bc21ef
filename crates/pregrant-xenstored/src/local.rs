//! A xenstore within one process: a [`Server`] behind a lock, and clients that reach it without any
//! socket.
//!
//! For tests and examples, beside [`pregrant::platform::local`]. Threads may be domains; a wait
//! sleeps until another thread's request brings something.

use super::server::{ConnId, Server};
use pregrant::DomId;
use pregrant::xenstore::client::{Client, Transport};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::time::Instant;

/// The store. Clones are the same store.
#[derive(Clone, Debug, Default)]
pub struct LocalStore {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    server: Mutex<Server>,
    /// Signalled after each request: anyone's output may have grown.
    served: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Server> {
        // A test thread that panicked leaves a whole server behind: no call of it can be cut short
        // by a peer.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalStore {
    /// A new store; domain 0 is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// A client that speaks for a domain.
    pub fn client(&self, domid: DomId) -> Client<LocalLink> {
        Client::new(self.link(domid))
    }

    /// The way alone, for a client that speaks for a domain.
    pub fn link(&self, domid: DomId) -> LocalLink {
        let conn = self.shared.lock().connect(domid);
        LocalLink { shared: self.shared.clone(), conn, fetched: Vec::new() }
    }

    /// The server itself: to introduce and release domains, to check its counts.
    pub fn with_server<R>(&self, f: impl FnOnce(&mut Server) -> R) -> R {
        let result = f(&mut self.shared.lock());
        self.shared.served.notify_all();
        result
    }
}

/// A client's way to a [`LocalStore`]. Its watches and transactions end with it.
#[derive(Debug)]
pub struct LocalLink {
    shared: Arc<Shared>,
    conn: ConnId,
    fetched: Vec<u8>,
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.shared.lock().disconnect(self.conn);
    }
}

impl Transport for LocalLink {
    type Error = &'static str;

    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.shared.lock().feed(self.conn, bytes);
        self.shared.served.notify_all();
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error> {
        // A wait that is longer than the clock can tell is for ever.
        let deadline = wait.and_then(|w| Instant::now().checked_add(w));
        let mut server = self.shared.lock();
        loop {
            if self.fetched.is_empty() {
                server.take_output(self.conn, &mut self.fetched);
            }
            if !self.fetched.is_empty() {
                let n = buf.len().min(self.fetched.len());
                buf[..n].copy_from_slice(&self.fetched[..n]);
                self.fetched.drain(..n);
                return Ok(n);
            }
            if server.is_ended(self.conn) {
                return Err(
                    "xenstore closed the connection; the domain was released, or sent a malformed message",
                );
            }
            server = match deadline {
                None => self.shared.served.wait(server).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(0);
                    }
                    self.shared.served.wait_timeout(server, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_reads_what_domain_0_wrote_for_it() {
        let store = LocalStore::new();
        store.with_server(|s| s.introduce(DomId(7))).unwrap();
        let (mut dom0, mut guest) = (store.client(DomId(0)), store.client(DomId(7)));
        assert_eq!(guest.read("domid").unwrap(), b"7");
        guest.watch("data", "t").unwrap();
        dom0.write("/local/domain/7/data/x", "1").unwrap();
        let forever = None;
        assert_eq!(guest.next_event(forever).unwrap().unwrap().path, "data");
        assert_eq!(guest.next_event(forever).unwrap().unwrap().path, "data/x");
        assert_eq!(guest.next_event(Some(Duration::ZERO)).unwrap(), None);
    }
}
