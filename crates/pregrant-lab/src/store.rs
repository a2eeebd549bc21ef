//! `pregrant-lab store serve`: xenstored alone, for Xen's own tools or for drivers under
//! development. `pregrant store` lists, reads and writes keys.

use clap::{Args, Subcommand};
use pregrant_cli::stop::Stop;
use pregrant_loopback::xenstored::Xenstored;
use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant-lab store`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant-lab store serve --socket /tmp/xs.sock

`pregrant store` lists, reads and writes keys.")]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand, Debug)]
enum StoreCommand {
    /// Serve a xenstore of its own on a unix socket until SIGTERM or SIGINT
    #[command(after_help = "Examples:
  pregrant-lab store serve --socket /tmp/xs.sock &
  XENSTORED_PATH=/tmp/xs.sock xenstore-write /tool/hello world
  XENSTORED_PATH=/tmp/xs.sock xenstore-ls -p

Who can connect to the socket is domain 0. The socket is removed at the end.")]
    Serve {
        /// The socket to make
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
    },
}

/// Runs `pregrant-lab store`.
///
/// # Errors
/// The socket cannot be made, or signals cannot be handled.
pub fn run(args: StoreArgs) -> Result<()> {
    match args.command {
        StoreCommand::Serve { socket } => serve(socket),
    }
}

fn serve(socket: PathBuf) -> Result<()> {
    // A signal makes it readable, and the server's epoll sees that.
    let stop = Stop::on_signals()
        .map_err(|e| format!("cannot handle signals: {e}; raise the limit of open files (ulimit -n)"))?;
    let mut xenstored = Xenstored::new()?;
    xenstored.listen_unix(&socket)?;
    // Our parent may wait for this line, or may have closed our output: serving goes on.
    let _ = writeln!(std::io::stdout(), "xenstored ready on {}", socket.display());
    xenstored.run(Some(stop.as_fd()))?;
    Ok(())
}
