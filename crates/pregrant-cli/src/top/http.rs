//! The smallest HTTP server that a Prometheus can scrape: one request a connection, and none of
//! them waits for another one's client.
//!
//! Only on a loopback address, since it asks no one for a password. What a client may do: send
//! anything or nothing. It has [`PATIENCE`] for its request and as long for taking the answer, and
//! [`HEAD_MAX`] bytes; then it is cut off. Of more than [`CLIENTS_MAX`] the oldest is cut off.

use super::prometheus;
use crate::stop::Stop;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Timeout for receiving a request, and for sending the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const CLIENTS_MAX: usize = 64;
/// Interval of attempts to accept when no descriptor was left.
const PAUSE: Duration = Duration::from_millis(100);
/// Largest size of a request in bytes.
const HEAD_MAX: usize = 8192;

/// Serves until a signal. `text` produces the metrics, or the reason why there are none.
pub fn serve(
    at: SocketAddr,
    stop: &Stop,
    text: impl Fn() -> Result<String, String>,
) -> Result<(), Box<dyn Error>> {
    if !at.ip().is_loopback() {
        return Err(format!(
            "{at}: not a loopback address; use 127.0.0.1:{} and put a proxy in front",
            at.port()
        )
        .into());
    }
    let listener =
        TcpListener::bind(at).map_err(|e| format!("cannot listen on {at}: {e}; choose another port"))?;
    listener.set_nonblocking(true)?;
    let _ = crate::screen::print(format_args!("serving http://{}/metrics", listener.local_addr()?));
    let mut clients: Vec<Client> = Vec::new();
    // While there is no descriptor for a client, none is waited for: it would wake without end.
    let mut pause: Option<Instant> = None;
    while !stop.asked() {
        let now = Instant::now();
        pause = pause.filter(|until| *until > now);
        let left = |until: Instant| until.saturating_duration_since(now);
        let first = clients.iter().map(|client| client.until).chain(pause).min().map(left);
        let first = first.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        let listens = if pause.is_some() { PollFlags::empty() } else { PollFlags::IN };
        fds.push(PollFd::new(&listener, listens));
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.waits_for())));
        match rustix::event::poll(&mut fds, first.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let comes = !fds[1].revents().is_empty();
        drop(fds);
        let mut ready = ready.into_iter();
        clients.retain_mut(|client| client.turn(ready.next().unwrap_or_default(), &text));
        // At most as many as allowed: a client that keeps connecting must not keep others from
        // being served.
        for _ in 0..if comes { CLIENTS_MAX } else { 0 } {
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut client = Client::new(stream)?;
                    // Most have sent their request already.
                    if client.turn(true, &text) {
                        if clients.len() == CLIENTS_MAX {
                            clients.remove(0); // it has had the longest time
                        }
                        clients.push(client);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::MFILE | Errno::NFILE)) => {
                    if clients.is_empty() {
                        pause = Some(now + PAUSE);
                        break;
                    }
                    clients.remove(0);
                }
                Err(_) => {} // it has gone
            }
        }
    }
    Ok(())
}

/// A client that is sending its request or receiving its answer.
struct Client {
    stream: TcpStream,
    head: Vec<u8>,
    /// The rest of the answer that was not sent yet.
    answer: Option<Vec<u8>>,
    until: Instant,
}

impl Client {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, head: Vec::new(), answer: None, until: Instant::now() + PATIENCE })
    }

    fn waits_for(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Continues the exchange with the client. Returns false if it is done, the client has gone, or
    /// its time is up.
    fn turn(&mut self, is_ready: bool, text: impl Fn() -> Result<String, String>) -> bool {
        match if is_ready { self.go_on(text) } else { Ok(()) } {
            Ok(()) => {
                let is_done = self.answer.as_ref().is_some_and(Vec::is_empty);
                !is_done && Instant::now() < self.until
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Instant::now() < self.until
            }
            Err(e) => {
                log::info!("closed the connection of a client: {e}");
                false
            }
        }
    }

    fn go_on(&mut self, text: impl Fn() -> Result<String, String>) -> std::io::Result<()> {
        while self.answer.is_none() {
            let mut piece = [0; 1024];
            match self.stream.read(&mut piece)? {
                // One that only looks whether somebody listens is done.
                0 if self.head.is_empty() => {
                    self.answer = Some(Vec::new());
                    return Ok(());
                }
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => self.head.extend_from_slice(&piece[..n]),
            }
            if self.head.windows(4).any(|w| w == b"\r\n\r\n") {
                let (status, kind, body) = response(&self.head, &text);
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                self.answer = Some([head.as_bytes(), body.as_bytes()].concat());
                self.until = Instant::now() + PATIENCE;
            } else if self.head.len() > HEAD_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        while let Some(rest) = self.answer.as_mut().filter(|rest| !rest.is_empty()) {
            let n = self.stream.write(rest)?;
            rest.drain(..n);
        }
        Ok(())
    }
}

fn response(head: &[u8], text: impl Fn() -> Result<String, String>) -> (&'static str, &'static str, String) {
    let plain = "text/plain; charset=utf-8";
    let line = String::from_utf8_lossy(head);
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    match (words.next(), words.next().map(|path| path.split('?').next().unwrap_or_default())) {
        (Some("GET"), Some("/metrics")) => match text() {
            Ok(text) => ("200 OK", prometheus::CONTENT_TYPE, text),
            Err(why) => ("503 Service Unavailable", plain, why + "\n"),
        },
        (Some("GET"), Some(_)) => ("404 Not Found", plain, "the metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", plain, "only GET\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_get_of_the_metrics_is_answered_with_them() {
        let of = |request: &str| response(request.as_bytes(), || Ok("x 1\n".into()));
        assert_eq!(of("GET /metrics HTTP/1.1\r\n\r\n"), ("200 OK", prometheus::CONTENT_TYPE, "x 1\n".into()));
        assert_eq!(of("GET /metrics?a=b HTTP/1.0\r\n\r\n").0, "200 OK");
        assert_eq!(of("GET / HTTP/1.1\r\n\r\n").0, "404 Not Found");
        for other in ["POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n", "GET", "\u{0}\u{1}\r\n\r\n"] {
            assert_eq!(of(other).0, "405 Method Not Allowed", "{other:?}");
        }
        let failed = response(b"GET /metrics HTTP/1.1\r\n\r\n", || Err("no machine".into()));
        assert_eq!((failed.0, failed.2.as_str()), ("503 Service Unavailable", "no machine\n"));
    }
}
