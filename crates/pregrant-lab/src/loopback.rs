//! `pregrant-lab loopback`: a Xen in user space that stays, and what a toolstack does on it.
//!
//! ```text
//!   loopback serve: broker + xenstored (threads) + toolstack
//!        |  a guest's process ends -> its domain ends -> its devices are closed and removed -> both are made again
//!        +-- back, blkback, front, loopback attach|detach: processes of their own, through the sockets in DIR
//! ```
//! Which guests there are to be stands in xenstore alone: a guest without a device is not made
//! again, so that `detach` needs no word with `serve`.

use clap::{Args, Subcommand};
use pregrant::DomId;
use pregrant::blk::device_number;
use pregrant::xenbus::{Class, DeviceId};
use pregrant::xenstore::Client;
use pregrant_cli::choice::choice;
use pregrant_cli::loopback_machine::{self, DRIVER, RUN_PROGRAMS, guest_domid, no_machine, only_ours};
use pregrant_cli::screen;
use pregrant_cli::signals;
use pregrant_cli::table::{Align, Table};
use pregrant_host::UnixTransport;
use pregrant_host::disks::ImageSpec;
use pregrant_host::drivers::status;
use pregrant_loopback::{Control, DomainSpec, GrantSummary, GrantTableVersion, LoopbackError};
use pregrant_testbed::machine::Machine;
use pregrant_testbed::toolstack::{self, DiskSpec, Removal, VifSpec};
use rustix::io::Errno;
use std::error::Error;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant-lab loopback`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant-lab loopback serve --dir /tmp/xen --guest 5 --guest 6
  pregrant-lab loopback serve --dir /tmp/xen --guest 5 --disk 5=/tmp/disk.img
  pregrant-lab loopback attach --dir /tmp/xen 7
  pregrant-lab loopback attach --dir /tmp/xen 7 --disk ram:64M
  pregrant-lab loopback attach --dir /tmp/xen 7 --vif bridge=xenbr0
  pregrant-lab loopback detach --dir /tmp/xen 7 --disk xvda
  pregrant-lab loopback detach --dir /tmp/xen 7
  pregrant-lab loopback grants --dir /tmp/xen

docs/loopback.md walks through it: a transfer that outlives its backend.")]
pub struct LoopbackArgs {
    #[command(subcommand)]
    command: LoopbackCommand,
}

#[derive(Subcommand, Debug)]
enum LoopbackCommand {
    /// Run a machine until SIGTERM or SIGINT: domain 0, the guests asked for, xenstore
    #[command(after_help = "Examples:
  pregrant-lab loopback serve --dir /tmp/xen --guest 5 --guest 6 &
  pregrant back --loopback /tmp/xen &
  pregrant-lab front --loopback /tmp/xen --domain 5
  XENSTORED_PATH=/tmp/xen/xenstored.sock xenstore-ls

Grant tables v2 have no grants of a part of a page or of another domain's grant, and half as many entries: 16384 a domain.
The directory is made, for this user alone, and removed at the end if it was. Domains end with this process. A guest's
domain also ends with the last process in it; it is made again at once, with its vifs.")]
    Serve {
        #[command(flatten)]
        place: Place,
        /// A guest to make, with one vif that domain 0 serves (may be repeated)
        #[arg(long = "guest", value_name = "DOMID", value_parser = guest_domid)]
        guests: Vec<u16>,
        /// A disk for a guest of those: a raw file or a block device by its whole path, or ram:64M;
        /// with ,r behind it the guest only reads, with ,w or without it writes, too (may be
        /// repeated: xvda, xvdb ...)
        #[arg(long = "disk", value_name = "DOMID=IMAGE[,r|,w]", value_parser = disk_of_guest)]
        disks: Vec<(u16, DiskSpec)>,
        /// The domains' grant tables
        #[arg(long, default_value = "v1", value_parser = choice(TABLES, GrantTableVersion::name))]
        grant_table: GrantTableVersion,
    },
    /// Make a guest with one vif on a running machine; a guest that is there gets one vif more, or
    /// the disks that are named
    #[command(after_help = "Examples:
  pregrant-lab loopback attach --dir /tmp/xen 7
  pregrant-lab loopback attach --dir /tmp/xen 7 --vif bridge=xenbr0,script=/etc/xen/scripts/vif-bridge
  pregrant-lab loopback attach --dir /tmp/xen 7 --disk /tmp/disk.img

The vif's keys are for `pregrant back --port tap`.")]
    Attach {
        #[command(flatten)]
        place: Place,
        /// The guest
        #[arg(value_name = "DOMID", value_parser = guest_domid)]
        guest: u16,
        /// A disk for it, as for serve (may be repeated)
        #[arg(long = "disk", value_name = "IMAGE[,r|,w]", value_parser = disk)]
        disks: Vec<DiskSpec>,
        /// A vif for it, also beside disks, plugged in by these keys, as in xl's vif= lines:
        /// bridge, script, vifname, mtu, vlan
        #[arg(long, value_name = "KEY=VALUE,...")]
        vif: Option<VifSpec>,
    },
    /// Close and remove one device of a guest as xl does; without --vif and --disk all of them, and
    /// end the guest
    #[command(after_help = "Examples:
  pregrant-lab loopback detach --dir /tmp/xen 7 --vif 1
  pregrant-lab loopback detach --dir /tmp/xen 7 --disk xvda
  pregrant-lab loopback detach --dir /tmp/xen 7 --disk xvda --force
  pregrant-lab loopback detach --dir /tmp/xen 7

A guest keeps a disk that it has mounted: after ten seconds the command gives up, and the disk goes on.")]
    Detach {
        #[command(flatten)]
        place: Place,
        /// The guest
        #[arg(value_name = "DOMID", value_parser = guest_domid)]
        guest: u16,
        /// Only this vif of the guest
        #[arg(long, value_name = "HANDLE", conflicts_with = "disk")]
        vif: Option<u32>,
        /// Only this disk of the guest: xvda, or its number
        #[arg(long, value_name = "NAME", value_parser = disk_number)]
        disk: Option<u32>,
        /// Remove it at once, whatever the guest does with it
        #[arg(long)]
        force: bool,
    },
    /// Count the grants of each domain to each other: how many there are, and how many are mapped
    #[command(after_help = "Examples:
  pregrant-lab loopback grants --dir /tmp/xen
  pregrant-lab loopback grants --dir /tmp/xen --domain 5 --json

in use: mapped, or copied at this moment. ended: the granting process has ended (table v2: or only the grant), and the
other domain still maps the page; it is freed once that lets go of it.")]
    Grants {
        #[command(flatten)]
        place: Place,
        /// Show only grants made by this domain
        #[arg(long, value_name = "DOMID")]
        domain: Option<u16>,
        /// A line of JSON for each row
        #[arg(long)]
        json: bool,
    },
}

/// The versions of grant tables, each with its description in the help.
const TABLES: &[(GrantTableVersion, &str)] = &[
    (GrantTableVersion::V1, "as Linux guests use them: who uses a page is noted in the grant itself"),
    (GrantTableVersion::V2, "use apart from the grant: ends without compare and exchange, or late"),
];

/// The machine that a command is for.
#[derive(Args, Debug)]
struct Place {
    /// The directory of the machine's sockets
    #[arg(long, alias = "loopback", value_name = "DIR")]
    dir: PathBuf,
}

/// Parses a disk, such as `/tmp/disk.img` or `ram:64M`, with `,r` behind it if the disk is
/// read-only. A file whose own name ends in `,r` or `,w` needs the mode behind that: `/tmp/a,r,w`.
/// The path must be absolute, since the backend is another process.
fn disk(text: &str) -> std::result::Result<DiskSpec, String> {
    let (params, writable) = match text.rsplit_once(',') {
        Some((params, "r")) => (params, false),
        Some((params, "w")) => (params, true),
        _ => (text, true),
    };
    params.parse::<ImageSpec>().map_err(|e| e.to_string())?;
    // A disk's key may have this form and mean /dev; a user who types it means a file in this
    // directory.
    if !params.starts_with('/') && !params.contains(':') {
        return Err(format!(
            "{params:?} does not begin with /; for the device /dev/{params} write phy:{params}"
        ));
    }
    Ok(DiskSpec { params: params.into(), writable })
}

/// Parses a disk's name, such as `xvda`, or its number.
fn disk_number(text: &str) -> std::result::Result<u32, String> {
    device_number::parse(text).ok_or_else(|| "a disk's name, xvda, or its number, 51712".into())
}

/// Parses a guest and its disk, such as `5=/tmp/disk.img`.
fn disk_of_guest(text: &str) -> std::result::Result<(u16, DiskSpec), String> {
    let (guest, image) =
        text.split_once('=').ok_or("a guest's number and an image: 5=/tmp/disk.img, 5=ram:64M")?;
    Ok((guest_domid(guest)?, disk(image)?))
}

/// Runs `pregrant-lab loopback`.
pub fn run(args: LoopbackArgs) -> Result<()> {
    match args.command {
        LoopbackCommand::Serve { place, guests, disks, grant_table } => {
            serve(&place.dir, &guests, &disks, grant_table)
        }
        LoopbackCommand::Attach { place, guest, disks, vif } => {
            attach(&place.dir, DomId(guest), &disks, vif.as_ref())
        }
        LoopbackCommand::Detach { place, guest, vif, disk, force } => {
            let one = vif.map(|vif| (Class::VIF, vif)).or(disk.map(|disk| (Class::VBD, disk)));
            match one {
                Some((class, handle)) => detach_one(&place.dir, class, DomId(guest), handle, force),
                None if force => {
                    Err("--force is for one device: name it by --vif HANDLE or --disk NAME; a whole guest is detached without --force"
                        .into())
                }
                None => detach(&place.dir, DomId(guest)),
            }
        }
        LoopbackCommand::Grants { place, domain, json } => grants(&place.dir, domain, json),
    }
}

/// A change of a device's state that the toolstack waits for.
enum Event {
    Destroyed(DomId),
    Stop,
}

fn serve(dir: &Path, guests: &[u16], disks: &[(u16, DiskSpec)], table: GrantTableVersion) -> Result<()> {
    if let Some((guest, _)) = disks.iter().find(|(guest, _)| !guests.contains(guest)) {
        return Err(
            format!("--disk {guest}=...: there is no such guest; name it, too: --guest {guest}").into()
        );
    }
    if let Some(twice) = guests.iter().enumerate().find(|(i, guest)| guests[..*i].contains(guest)) {
        let (dir, guest) = (loopback_machine::shell_word(dir), twice.1);
        return Err(format!(
            "--guest {guest} is given twice, and a machine has each guest once. For a second vif of it, later: \
             pregrant-lab loopback attach --dir {dir} {guest}"
        )
        .into());
    }
    let (events_out, events) = mpsc::channel();
    let mut signals = signal_hook::iterator::Signals::new(signals::ending())?;
    let on_signal = events_out.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            let _ = on_signal.send(Event::Stop);
        }
    })?;
    let mut place = MachineDir::make(dir)?;
    let mut machine = Machine::start_with(dir, table, move |domid| {
        let _ = events_out.send(Event::Destroyed(domid));
    })?;
    place.started = true;
    let mut text = format!("machine ready in {}\n  {DRIVER}: the driver domain", dir.display());
    for &guest in guests {
        machine.guest_domain(DomId(guest))?;
        toolstack::make_vif(machine.xs(), DomId(guest), 0)?;
        text += &format!("\n  {}: a guest with vif 0", DomId(guest));
        for (_, disk) in disks.iter().filter(|(of, _)| *of == guest) {
            let handle = make_disk(machine.xs(), DomId(guest), disk)?;
            text += &format!(", vbd {handle} ({})", disk.params);
        }
    }
    if !disks.is_empty() {
        text +=
            &format!("\nfor the disks: pregrant blkback --loopback {}", loopback_machine::shell_word(dir));
    }
    text += &format!(
        "\nnext: pregrant back --loopback {0}\nlook: XENSTORED_PATH={1} xenstore-ls",
        loopback_machine::shell_word(dir),
        loopback_machine::shell_word(&loopback_machine::store_socket(dir))
    );
    // The parent may have closed our output: continue to serve.
    let _ = screen::print(text);
    let mut ended = Ended::default();
    loop {
        match events.recv_timeout(ended.check()) {
            Ok(Event::Destroyed(domid)) => ended.begin(&mut machine, domid),
            Err(RecvTimeoutError::Timeout) => ended.turn(&mut machine),
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Guests that have ended and will be created again, as with `on_crash = "restart"` on real Xen. A
/// backend that does not close their vifs (because it is stopped) delays each guest by one timeout,
/// and not by the sum of all.
#[derive(Default)]
struct Ended(Vec<(DomId, Removal)>);

impl Ended {
    fn check(&self) -> Duration {
        if self.0.is_empty() { Duration::from_secs(3600) } else { Removal::CHECK }
    }

    fn begin(&mut self, machine: &mut Machine, domid: DomId) {
        match Removal::begin(machine.xs(), domid) {
            Ok(removal) if removal.is_empty() => log::info!("{domid} has ended"),
            Ok(removal) => self.0.push((domid, removal)),
            Err(e) => log::error!("{domid} has ended, and cannot be created again: {e}"),
        }
        self.turn(machine);
    }

    fn turn(&mut self, machine: &mut Machine) {
        self.0.retain_mut(|(domid, removal)| {
            let again = removal.turn(machine.xs()).and_then(|gone| {
                if gone {
                    machine.guest_domain(*domid)?;
                    removal.undo(machine.xs())?;
                }
                Ok(gone)
            });
            match again {
                Ok(true) => log::info!("{domid} has ended with its last process, and is made again"),
                Ok(false) => return true,
                Err(e) => log::error!("{domid} has ended, and cannot be created again: {e}"),
            }
            false
        });
    }
}

/// Creates a guest's next disk, and returns its number.
fn make_disk(xs: &mut Client<UnixTransport>, guest: DomId, disk: &DiskSpec) -> Result<u32> {
    let handle = toolstack::next_disk(xs, guest)?;
    toolstack::make_vbd(xs, guest, handle, disk)?;
    Ok(handle)
}

/// Connects to the machine in `dir`, for a toolstack in another process.
fn running(dir: &Path) -> Result<(Control, Client<UnixTransport>)> {
    let control = Control::connect(&loopback_machine::broker_socket(dir)).map_err(|e| no_machine(dir, e))?;
    Ok((control, Client::new(UnixTransport::connect(loopback_machine::store_socket(dir))?)))
}

fn attach(dir: &Path, guest: DomId, disks: &[DiskSpec], vif: Option<&VifSpec>) -> Result<()> {
    let (control, mut xs) = running(dir)?;
    let handles: Vec<u32> = toolstack::vifs_of(&mut xs, guest)?.iter().map(|id| id.handle).collect();
    let handle = (0..).find(|h| !handles.contains(h)).ok_or_else(|| {
        format!(
            "no number for a vif of {guest} is free; detach some: pregrant-lab loopback detach --dir {} {guest}",
            loopback_machine::shell_word(dir)
        )
    })?;
    let is_new = handles.is_empty()
        && match control.create_domain(DomainSpec::guest(guest)) {
            // Its vifs were detached.
            Err(LoopbackError::Refused { source: Errno::EXIST, .. }) => false,
            other => other.map(|()| true)?,
        };
    if is_new || disks.is_empty() || vif.is_some() {
        toolstack::make_plugged_vif(&mut xs, guest, handle, &vif.cloned().unwrap_or_default())?;
        screen::print(format_args!("{guest}: vif {handle} attached"))?;
    }
    for disk in disks {
        let handle = make_disk(&mut xs, guest, disk)?;
        screen::print(format_args!("{guest}: vbd {handle} attached ({})", disk.params))?;
    }
    Ok(())
}

fn detach_one(dir: &Path, class: Class, guest: DomId, handle: u32, force: bool) -> Result<()> {
    let (_, mut xs) = running(dir)?;
    let id = DeviceId { class, front: guest, back: DRIVER, handle };
    toolstack::detach(&mut xs, &id, force)?;
    Ok(screen::print(format_args!("{id}: removed"))?)
}

fn detach(dir: &Path, guest: DomId) -> Result<()> {
    let (control, mut xs) = running(dir)?;
    let removed = toolstack::remove_devices(&mut xs, guest)?;
    match control.destroy_domain(guest) {
        // It had ended, and was about to be made again.
        Err(e) if is_unknown(&e) && removed > 0 => {}
        Err(e) if is_unknown(&e) => {
            return Err(format!(
                "{}: there is no {guest}, so nothing is detached; this machine has {}",
                dir.display(),
                domains(&mut xs)
            )
            .into());
        }
        other => other?,
    }
    screen::print(format_args!("{guest}: {removed} device(s) removed, ended"))?;
    Ok(())
}

fn grants(dir: &Path, domain: Option<u16>, json: bool) -> Result<()> {
    let (control, mut xs) = running(dir)?;
    let mut rows = control.grants()?;
    if let Some(domain) = domain {
        rows.retain(|row| row.from.0 == domain);
        let known = xs.directory("/local/domain")?;
        if !known.iter().any(|known| *known == domain.to_string()) {
            let (dir, domain) = (dir.display(), DomId(domain));
            return Err(format!("{dir}: there is no {domain}; this machine has {}", domains(&mut xs)).into());
        }
    }
    if json {
        return rows.iter().try_for_each(|row| Ok(screen::print(json_line(row))?));
    }
    if rows.is_empty() {
        let whose = domain.map_or_else(String::new, |domain| format!(" of {}", DomId(domain)));
        return Ok(screen::print(format_args!("no grants{whose}"))?);
    }
    let columns = [
        ("domain", Align::Left),
        ("grants to", Align::Left),
        ("access", Align::Left),
        ("table", Align::Left),
        ("entries", Align::Right),
        ("in use", Align::Right),
        ("ended", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for GrantSummary { from, to, readonly, granted, in_use, ended, table: version } in rows {
        let access = if readonly { "read" } else { "read, write" };
        let counts = [granted, in_use, ended].map(|n| n.to_string());
        let kinds = [from.to_string(), to.to_string(), access.into(), version.name().into()];
        table.row(kinds.into_iter().chain(counts));
    }
    Ok(screen::print(table)?)
}

fn json_line(row: &GrantSummary) -> serde_json::Value {
    let GrantSummary { from, to, readonly, granted, in_use, ended, table } = row;
    serde_json::json!({
        "domain": from.0, "to": to.0, "readonly": readonly, "table": table.name(), "entries": granted, "in_use": in_use,
        "ended": ended,
    })
}

fn is_unknown(e: &LoopbackError) -> bool {
    matches!(e, LoopbackError::Refused { source: Errno::NOENT, .. })
}

/// Describes the domains that xenstore knows.
fn domains(xs: &mut Client<UnixTransport>) -> String {
    let mut known: Vec<u16> =
        xs.directory("/local/domain").unwrap_or_default().iter().filter_map(|d| d.parse().ok()).collect();
    known.sort_unstable();
    let known: Vec<String> = known.iter().map(u16::to_string).collect();
    format!("domains {}", known.join(", "))
}

/// The machine's directory. If it was created for the machine, it is removed with the machine.
struct MachineDir {
    path: PathBuf,
    made: bool,
    /// True once this machine was started. Before that, files in the directory may belong to
    /// another machine.
    started: bool,
}

impl MachineDir {
    fn make(dir: &Path) -> Result<Self> {
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => Ok(Self { path: dir.into(), made: true, started: false }),
            Err(_) if dir.is_dir() => {
                only_ours(dir, RUN_PROGRAMS)?;
                Ok(Self { path: dir.into(), made: false, started: false })
            }
            Err(e) => {
                Err(format!("cannot make {}: {e}; choose a directory that you may write to", dir.display())
                    .into())
            }
        }
    }
}

impl Drop for MachineDir {
    fn drop(&mut self) {
        if self.started {
            // A backend that was killed left its own.
            for socket in status::sockets_in(&self.path).unwrap_or_default() {
                let _ = std::fs::remove_file(socket);
            }
        }
        if self.made {
            let _ = std::fs::remove_dir(&self.path); // what others put there stays
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory is refused if others may write to it, if it belongs to another user, or if it is
    /// behind a link. `serve` refuses it as well.
    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let dir = std::env::temp_dir().join(format!("pregrant-only-ours-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let of = |mode| {
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
            let served = MachineDir::make(&dir).map(drop).map_err(|e| e.to_string());
            assert_eq!(served, only_ours(&dir, RUN_PROGRAMS).map_err(|e| e.to_string()));
            served
        };
        for mode in [0o700, 0o755, 0o1750] {
            assert_eq!(of(mode), Ok(()), "{mode:o}");
        }
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            let why = of(mode).unwrap_err();
            for part in [&*dir.to_string_lossy(), &*format!("mode {mode:04o}"), "chmod go-w"] {
                assert!(why.contains(part), "no {part:?} in {why}");
            }
        }
        let link = dir.with_extension("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(only_ours(&link, RUN_PROGRAMS).is_err(), "what it leads to counts");
        of(0o700).unwrap();
        only_ours(&link, RUN_PROGRAMS).unwrap();
        // Root may give them away.
        if std::os::unix::fs::lchown(&link, Some(1), None).is_ok() {
            let why = only_ours(&link, RUN_PROGRAMS).unwrap_err().to_string();
            assert!(why.contains("user 1's") && why.contains("run this as user 1"), "{why}");
            std::os::unix::fs::chown(&dir, Some(1), None).unwrap();
            assert!(of(0o700).unwrap_err().contains("user 1's"), "root has no part in it");
        }
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_disk_is_named_by_a_whole_path() {
        for (text, params, writable) in [
            ("/a/b", "/a/b", true),
            ("/a,r", "/a", false),
            ("/a,r,w", "/a,r", true),
            ("/a,w,r", "/a,w", false),
            ("/a,b", "/a,b", true),
            ("phy:vg/x", "phy:vg/x", true),
        ] {
            let disk = disk(text).unwrap();
            assert_eq!((disk.params.as_str(), disk.writable), (params, writable));
        }
        assert!(disk("images/a").err().unwrap().contains("phy:images/a"));
    }
}
