//! `pregrant store`: lists, reads and writes keys of a xenstore on machines where Xen's own tools
//! are not installed.

use crate::loopback_machine;
use crate::screen;
use clap::{Args, Subcommand};
use pregrant::wire::xs::Errno;
use pregrant::xenstore::{Client, XsError};
use pregrant_host::UnixTransport;
use std::error::Error;
use std::path::PathBuf;

/// Arguments of `pregrant store`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant store ls --loopback /tmp/xen /local/domain/5
  pregrant store read --loopback /tmp/xen /local/domain/0/backend/vif/5/0/state
  pregrant store write /local/domain/0/backend/vif/5/0/bridge xenbr0")]
pub struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand, Debug)]
enum StoreCommand {
    /// List a key with all that is below it
    #[command(after_help = "Examples:
  pregrant store ls /local/domain/0/backend/vif
  pregrant store ls --loopback /tmp/xen")]
    Ls {
        #[command(flatten)]
        which: Which,
        /// The key; one that does not begin with / is below the own domain's directory
        #[arg(value_name = "KEY", default_value = "/")]
        key: String,
    },
    /// Print a key's value
    #[command(after_help = "Examples:
  pregrant store read --loopback /tmp/xen /local/domain/5/device/vif/0/state")]
    Read {
        #[command(flatten)]
        which: Which,
        /// The key
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Give a key a value; makes it, and what is missing above it
    #[command(after_help = "Examples:
  pregrant store write --loopback /tmp/xen /local/domain/0/backend/vif/5/0/bridge xenbr0")]
    Write {
        #[command(flatten)]
        which: Which,
        /// The key
        #[arg(value_name = "KEY")]
        key: String,
        /// Its value
        #[arg(value_name = "VALUE")]
        value: String,
    },
}

/// Which xenstore to use: this machine's, unless another is named.
#[derive(Args, Debug)]
struct Which {
    /// That of the machine that `pregrant-lab loopback serve` runs in this directory
    #[arg(long, value_name = "DIR")]
    loopback: Option<PathBuf>,
}

impl Which {
    fn connect(&self) -> Result<Client<UnixTransport>> {
        match &self.loopback {
            Some(dir) => {
                let dir_shown = loopback_machine::shell_word(dir);
                let transport = UnixTransport::connect(loopback_machine::store_socket(dir)).map_err(|e| {
                    format!("{e}; start a machine first: pregrant-lab loopback serve --dir {dir_shown}")
                })?;
                Ok(Client::new(transport))
            }
            None => {
                let transport = UnixTransport::find()
                    .map_err(|e| format!("{e}. Not on Xen? Name a loopback machine: --loopback DIR"))?;
                Ok(Client::new(transport))
            }
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub fn run(args: StoreArgs) -> Result<()> {
    match args.command {
        StoreCommand::Ls { which, key } => {
            let mut text = String::new();
            let key = if key == "/" { &*key } else { key.trim_end_matches('/') };
            list(&mut which.connect()?, key, 0, &mut text).map_err(|e| refused(key, e))?;
            Ok(screen::print(text.trim_end())?)
        }
        StoreCommand::Read { which, key } => {
            let value = which.connect()?.read(&key).map_err(|e| refused(&key, e))?;
            Ok(screen::print(shown(&value))?)
        }
        StoreCommand::Write { which, key, value } => {
            Ok(which.connect()?.write(&key, value).map_err(|e| refused(&key, e))?)
        }
    }
}

/// Formats the error for a failed request, with a remedy.
fn refused(key: &str, e: XsError) -> Box<dyn Error> {
    let remedy = match e.errno() {
        Some(Errno::Enoent) => format!("; `pregrant store ls` lists what there is (look above {key})"),
        Some(Errno::Eacces) => "; its owner, and domain 0, may do that".into(),
        _ => String::new(),
    };
    format!("{e}{remedy}").into()
}

/// Lists the keys below a key, one on each line, as xenstore-ls does. A key that is removed
/// meanwhile is left out.
fn list(
    xs: &mut Client<UnixTransport>,
    key: &str,
    depth: usize,
    text: &mut String,
) -> std::result::Result<(), XsError> {
    let mut names = xs.directory(key)?;
    names.sort();
    for name in names {
        let below = if key == "/" { format!("/{name}") } else { format!("{key}/{name}") };
        let Some(value) = xs.read_if_there(&below)? else { continue };
        *text += &format!("{:2$}{name} = \"{}\"\n", "", shown(&value), depth);
        match list(xs, &below, depth + 1, text) {
            Err(e) if e.errno() == Some(Errno::Enoent) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Formats a value as text that is safe for a terminal, since a guest may have written anything.
fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}
