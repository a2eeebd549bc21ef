//! `pregrant store`: xenstored alone, for Xen's own tools or for drivers under development.

use crate::stop::Stop;
use clap::{Args, Subcommand};
use pregrant_host::xenstored::Xenstored;
use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Arguments of `pregrant store`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant store serve --socket /tmp/xs.sock
  pregrant store serve --help")]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand, Debug)]
enum StoreCommand {
    /// Serve a xenstore of its own on a unix socket until SIGTERM or SIGINT
    #[command(after_help = "Examples:
  pregrant store serve --socket /tmp/xs.sock &
  XENSTORED_PATH=/tmp/xs.sock xenstore-write /tool/hello world
  XENSTORED_PATH=/tmp/xs.sock xenstore-ls -p

Who can connect to the socket is domain 0. The socket is removed at the end.")]
    Serve {
        /// The socket to make
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
    },
}

/// Runs `pregrant store`.
pub fn run(args: StoreArgs) -> Result<(), Box<dyn Error>> {
    match args.command {
        StoreCommand::Serve { socket } => serve(socket),
    }
}

fn serve(socket: PathBuf) -> Result<(), Box<dyn Error>> {
    // A signal makes it readable, and the server's epoll sees that.
    let stop = Stop::on_signals().map_err(|e| format!("cannot take signals: {e}; see ulimit -n"))?;
    let mut xenstored = Xenstored::new()?;
    xenstored.listen_unix(&socket)?;
    // Our parent may wait for this line, or may have closed our output: serving goes on.
    let _ = writeln!(std::io::stdout(), "xenstored ready on {}", socket.display());
    xenstored.run(Some(stop.as_fd()))?;
    Ok(())
}
