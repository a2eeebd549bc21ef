//! The smallest HTTP server that a Prometheus can scrape: one request a connection, one connection
//! at a time.
//!
//! Only on a loopback address, since it asks no one for a password. What a client may do: send
//! anything or nothing. It has [`PATIENCE`] for its request and as long for taking the answer, and
//! [`HEAD_MAX`] bytes; then it is cut off, and the next one is served.

use super::prometheus;
use crate::stop::Stop;
use rustix::event::{PollFd, PollFlags};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// For a request, and for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request at most.
const HEAD_MAX: usize = 8192;

/// Serves until a signal. `text` makes what is scraped, or says why not.
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
    listener.set_nonblocking(true)?; // a client may be gone between poll and accept
    let _ = pregrant_lab::screen::print(format_args!("serving http://{}/metrics", listener.local_addr()?));
    while !stop.asked() {
        let mut fds = [PollFd::new(&listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if let Ok((client, _)) = listener.accept()
            && let Err(e) = answer(client, &text)
        {
            log::info!("closed the connection of a client: {e}");
        }
    }
    Ok(())
}

fn answer(mut client: TcpStream, text: impl Fn() -> Result<String, String>) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        client.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match client.read(&mut piece)? {
            0 => return Ok(()),
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    let (status, kind, body) = response(&head, text);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // One that takes its answer in small pieces keeps others waiting for as long as the whole of it
    // may take.
    client.set_write_timeout(Some(PATIENCE))?;
    let mut answer = head.into_bytes();
    answer.extend_from_slice(body.as_bytes());
    let (mut rest, until) = (&answer[..], Instant::now() + PATIENCE);
    while !rest.is_empty() && Instant::now() < until {
        let n = client.write(rest)?;
        rest = &rest[n..];
    }
    Ok(())
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
