//! Sets the watch on a class's directory, and interprets the watch's events.

use pregrant::DomId;
use pregrant::xenbus::back::HOTPLUG_STATUS;
use pregrant::xenbus::device::ONLINE;
use pregrant::xenbus::{Class, ClassRules, DeviceId};
use pregrant::xenstore::{WatchEvent, path};

/// Path of a class's devices, relative to the domain's directory. It is also the token of the watch
/// there.
pub(super) fn watch_of(class: Class) -> String {
    format!("backend/{}", class.name())
}

/// The meaning of an event below our own directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Changed {
    /// A device may have been added or removed.
    Devices,
    /// The `state` of a device's back changed. This process writes it, or a toolstack that
    /// announces the device.
    State(DeviceId),
    /// A key of one device that the toolstack or its script writes.
    Toolstack(DeviceId),
    /// A key of one device changed that is among the class's own keys (`ClassRules`).
    Own(DeviceId, &'static str),
    /// A key changed that this backend does not depend on: we, or the toolstack, write it for
    /// others.
    Nothing,
}

pub(super) fn below_watch(
    event: &WatchEvent,
    back: DomId,
    &ClassRules { class, own_keys, .. }: &ClassRules,
) -> Changed {
    // From the home on; some xenstoreds name nodes from the root on.
    let home = path::home(back) + "/";
    let from_home = event.path.strip_prefix(&home).unwrap_or(&event.path);
    // The event is for a directory above: everything may be gone.
    let below = from_home.strip_prefix("backend/").and_then(|below| below.strip_prefix(class.name()));
    let Some(below) = below else { return Changed::Devices };
    let mut parts = below.split('/').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(front), Some(handle), Some(key)) => match (front.parse(), handle.parse()) {
            (Ok(front), Ok(handle)) => {
                let id = DeviceId { class, front: DomId(front), back, handle };
                match key {
                    ONLINE | HOTPLUG_STATUS => Changed::Toolstack(id),
                    "state" => Changed::State(id),
                    _ => own_keys
                        .iter()
                        .find(|own| **own == key)
                        .map_or(Changed::Nothing, |own| Changed::Own(id, own)),
                }
            }
            _ => Changed::Nothing,
        },
        _ => Changed::Devices,
    }
}
