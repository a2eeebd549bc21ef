//! Plays a script of xenstore messages against the store behind a socket, and prints what it
//! answers, so that two stores can be compared line by line: `store_transcript SOCKET SCRIPT`.
//!
//! ```text
//!   a WRITE 0 /rig/x|value        connection, type, transaction, payload ('|' is a NUL)
//!   a TRANSACTION_START 0 |       later lines name the transaction as $1, $2 ... in the order of their starts
//!   > WRITE: OK|                  what came back: type, payload
//!   > b event /rig/x|token|       events of each connection, sorted; they are waited for after every message
//! ```
//! Values that may differ between two good stores are not printed: transactions' numbers, the
//! generation in DIRECTORY_PART, the order of names in a directory.

use pregrant::wire::xs::{Header, MsgType};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Messages that the script may name. A number stands for itself, for types that do not exist.
const TYPES: [(&str, MsgType); 18] = [
    ("DIRECTORY", MsgType::Directory),
    ("READ", MsgType::Read),
    ("GET_PERMS", MsgType::GetPerms),
    ("WATCH", MsgType::Watch),
    ("UNWATCH", MsgType::Unwatch),
    ("TRANSACTION_START", MsgType::TransactionStart),
    ("TRANSACTION_END", MsgType::TransactionEnd),
    ("INTRODUCE", MsgType::Introduce),
    ("RELEASE", MsgType::Release),
    ("GET_DOMAIN_PATH", MsgType::GetDomainPath),
    ("WRITE", MsgType::Write),
    ("MKDIR", MsgType::Mkdir),
    ("RM", MsgType::Rm),
    ("SET_PERMS", MsgType::SetPerms),
    ("IS_DOMAIN_INTRODUCED", MsgType::IsDomainIntroduced),
    ("RESUME", MsgType::Resume),
    ("RESET_WATCHES", MsgType::ResetWatches),
    ("DIRECTORY_PART", MsgType::DirectoryPart),
];

fn number(name: &str) -> Result<u32> {
    if let Some((_, known)) = TYPES.iter().find(|(n, _)| *n == name) {
        return Ok(*known as u32);
    }
    Ok(name.parse().map_err(|_| format!("no message type {name}"))?)
}

struct Connection {
    stream: UnixStream,
    events: Vec<String>,
}

impl Connection {
    fn send(&mut self, msg_type: u32, tx_id: u32, payload: &[u8]) -> Result<()> {
        let header = Header { msg_type, req_id: 7, tx_id, len_bytes: payload.len() as u32 };
        self.stream.write_all(&header.to_bytes())?;
        Ok(self.stream.write_all(payload)?)
    }

    /// The next answer; events before it are kept.
    fn answer(&mut self) -> Result<(u32, Vec<u8>)> {
        loop {
            let mut header = [0; Header::SIZE];
            self.stream.read_exact(&mut header)?;
            let header = Header::from_bytes(header);
            let mut payload = vec![0; header.len_bytes as usize];
            self.stream.read_exact(&mut payload)?;
            if header.msg_type != MsgType::WatchEvent as u32 {
                return Ok((header.msg_type, payload));
            }
            self.events.push(shown(&payload));
        }
    }
}

fn shown(payload: &[u8]) -> String {
    payload
        .iter()
        .flat_map(|&b| if b == 0 { vec!['|'] } else { b.escape_ascii().map(char::from).collect() })
        .collect()
}

/// The names of a directory, sorted: no order of theirs is promised.
fn in_order(payload: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = payload.split_inclusive(|&b| b == 0).collect();
    names.sort();
    names.concat()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, script] = &arguments[..] else { return Err("usage: store_transcript SOCKET SCRIPT".into()) };
    let mut connections: BTreeMap<String, Connection> = BTreeMap::new();
    let mut transactions: Vec<u32> = Vec::new();
    for line in std::fs::read_to_string(script)?.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        println!("{line}");
        let mut parts = line.splitn(4, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (who, name, tx, text) = (part(), part(), part(), part());
        let tx_id = match tx.strip_prefix('$') {
            Some(n) => *transactions.get(n.parse::<usize>()? - 1).ok_or("no such transaction")?,
            None => tx.parse()?,
        };
        if !connections.contains_key(who) {
            let stream = UnixStream::connect(socket)?;
            connections.insert(who.into(), Connection { stream, events: Vec::new() });
        }
        if name == "CLOSE" {
            connections.remove(who);
            continue;
        }
        let connection = connections.get_mut(who).ok_or("a connection that was just made")?;
        // x*3000: a long name.
        let text = match text.split_once('*') {
            Some((head, n)) => {
                let (last, end) = (
                    head.chars().last().unwrap_or('x').to_string(),
                    n.trim_start_matches(|c: char| c.is_ascii_digit()),
                );
                format!("{head}{}{end}", last.repeat(n[..n.len() - end.len()].parse()?))
            }
            None => text.to_string(),
        };
        connection.send(number(name)?, tx_id, text.replace('|', "\0").as_bytes())?;
        let (kind, mut payload) = connection.answer()?;
        if kind == MsgType::TransactionStart as u32 {
            transactions.push(std::str::from_utf8(&payload)?.trim_end_matches('\0').parse()?);
            payload = b"number\0".to_vec();
        }
        if kind == MsgType::DirectoryPart as u32 {
            let end = payload.iter().position(|&b| b == 0).unwrap_or(0);
            payload.splice(..end, *b"generation");
        }
        if kind == MsgType::Directory as u32 || kind == MsgType::DirectoryPart as u32 {
            payload = in_order(&payload);
        }
        let kind = if kind == MsgType::Error as u32 { "ERROR" } else { name };
        println!("> {kind}: {}", shown(&payload));
        // Events are sent before the answer to anything that comes later.
        for (who, connection) in &mut connections {
            connection.send(MsgType::GetDomainPath as u32, 0, b"0\0")?;
            connection.answer()?;
            connection.events.sort();
            for event in connection.events.drain(..) {
                println!("> {who} event {event}");
            }
        }
    }
    Ok(())
}
