//! Datagrams to a port without a listener: `datagrams IP COUNT BYTES`, each a frame of so many
//! bytes. It sleeps between two bursts, and while its socket's buffer is full, unlike pktgen, so
//! that what a guest executes for its frames can be counted. `datagrams PORT` prints what comes.

use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

const PORT: u16 = 9;
/// Headers of Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Number of datagrams in a burst. No queue is shorter, and a pause is long enough to send one.
const BURST: u64 = 200;
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    if let [port] = args.as_slice() {
        return print(port.parse()?);
    }
    let [to, count, bytes] = args.as_slice() else { return Err("datagrams IP COUNT BYTES | PORT".into()) };
    let (to, count): (IpAddr, u64) = (to.parse()?, count.parse()?);
    let payload = vec![0; bytes.parse::<usize>()?.saturating_sub(HEADERS)];
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    for k in 0..count {
        if k % BURST == BURST - 1 {
            std::thread::sleep(PAUSE);
        }
        // Connected, it would get ECONNREFUSED.
        socket.send_to(&payload, (to, PORT))?;
    }
    Ok(())
}

fn print(port: u16) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let mut came = [0; 2048];
    loop {
        let n = socket.recv(&mut came)?;
        std::io::stdout().write_all(&came[..n])?;
    }
}
