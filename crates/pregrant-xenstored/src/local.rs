//! A xenstore within one process: a [`Server`] behind a lock, and clients that use it without a
//! socket.
//!
//! It is for tests and examples, together with [`pregrant::platform::local`]. Threads may act as
//! domains; a wait sleeps until a request of another thread causes output.

use super::server::{ConnId, Server};
use pregrant::DomId;
use pregrant::xenstore::client::{Client, Transport};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::time::Instant;

/// A store within the process. Clones share its content.
#[derive(Clone, Debug, Default)]
pub struct LocalStore {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    server: Mutex<Server>,
    /// Signalled after each request, since any client's output may have grown.
    served: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Server> {
        // A test thread that panicked leaves a consistent server: no peer can interrupt a call half
        // way.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalStore {
    /// A new store, in which domain 0 is introduced.
    pub fn new() -> Self {
        Self::default()
    }

    /// A client of a domain.
    pub fn client(&self, domid: DomId) -> Client<LocalLink> {
        Client::new(self.link(domid))
    }

    /// The transport for a client of a domain.
    pub fn link(&self, domid: DomId) -> LocalLink {
        let conn = self.shared.lock().connect(domid);
        LocalLink { shared: self.shared.clone(), conn, fetched: Vec::new() }
    }

    /// Accesses the server itself, to introduce and release domains, or to check its counts.
    pub fn with_server<R>(&self, f: impl FnOnce(&mut Server) -> R) -> R {
        let result = f(&mut self.shared.lock());
        self.shared.served.notify_all();
        result
    }
}

/// A client's transport to a [`LocalStore`]. Dropping it ends the client's watches and
/// transactions.
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
        // A wait beyond the clock's range means no timeout.
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
