//! `pregrant hotplug`: runs one hotplug script for a backend that may not do so itself.
//!
//! systemd starts it for each connection of `pregrant-hotplug.socket`, with the connection as
//! standard input. The request is checked here, by a process that the backend does not control
//! ([`pregrant_host::drivers::net::hotplug`]).

use clap::Args;
use pregrant_host::drivers::net::hotplug::Service;
use std::error::Error;
use std::path::PathBuf;

/// Arguments of `pregrant hotplug`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant hotplug --scripts /etc/xen/scripts      # as dist/pregrant-hotplug@.service has it

Started by dist/pregrant-hotplug.socket, for `pregrant back --hotplug-socket PATH`. It reads one request from the socket on \
standard input, runs that script, and says on the socket how it ended.")]
pub struct HotplugArgs {
    /// The folder with the scripts that may be asked for
    #[arg(long, value_name = "DIR", default_value = "/etc/xen/scripts")]
    scripts: PathBuf,
}

pub fn run(args: &HotplugArgs) -> Result<(), Box<dyn Error>> {
    let request = Service::new(&args.scripts, "/sys/class/net").serve(std::io::stdin())?;
    log::info!(
        "hotplug: ran {} {} for interface {} ({})",
        request.script,
        request.what,
        request.vif,
        request.dir
    );
    Ok(())
}
