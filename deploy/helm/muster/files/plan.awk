# What a Redis cluster needs next, from what its nodes say. A pure function: cluster.sh asks the
# nodes and carries out the plan. It is asked again and again, so a plan holds one kind of step only
# and everything may be interrupted at any point.
#
# In:   node NAME               a node that should be a member
#       addr NAME IP:PORT       it answers, and this is its address now
#       view NAME LINE          a line of its CLUSTER NODES
#       follows NAME IP:PORT    it is a replica, and copies from there
# Out:  meet NAME IP PORT | slots NAME FIRST LAST | replicate NAME ID | forget NAME ID | warn TEXT
# With: -v primaries=3
#
# Nodes know each other by id, at the address that they remember. When all of them get new addresses
# at once they do not find each other again; meeting at the new address heals that.

$1 == "node" { names[++count] = $2 }
$1 == "addr" { split($3, part, ":"); ip[$2] = part[1]; port[$2] = part[2]; up++ }
$1 == "follows" { copies[$2] = $3 }
$1 == "view" {
    name = $2; id = $3; address = $4; flags = $5
    sub(/@.*/, "", address)
    owns = ""
    for (i = 11; i <= NF; i++) if ($i !~ /^\[/) { owns = owns " " $i; owned[$i] = 1 }
    if (flags ~ /myself/) {
        id_of[name] = id
        master_of[name] = (flags ~ /slave/) ? $6 : ""
        slots_of[name] = owns
    }
    seen[name, id] = address
    healthy[name, id] = (flags !~ /handshake|noaddr/ && flags !~ /(^|,)fail(,|$)/)
    if (flags !~ /handshake/) { known[id] = 1; if (owns != "") owner[id] = owns; if (flags ~ /(^|,)fail(,|$)/) failed[name, id] = 1 }
}

END {
    if (meet() || up < count) exit
    if (lost_owner()) exit
    if (give_slots()) exit
    if (replicate()) exit
    if (follow()) exit
    forget()
}

# Every node that answers must know every other one that answers, at its address of now.
function meet(    a, b, steps) {
    for (a = 1; a <= count; a++) for (b = 1; b <= count; b++) {
        if (a == b || !(names[a] in ip) || !(names[b] in ip)) continue
        if (seen[names[a], id_of[names[b]]] == ip[names[b]] ":" port[names[b]] && healthy[names[a], id_of[names[b]]]) continue
        print "meet", names[a], ip[names[b]], port[names[b]]
        steps++
    }
    return steps
}

# Slots of a node that is gone with its disk are left alone: the data may come back from a backup.
function lost_owner(    i, id, wanted, lost) {
    for (i = 1; i <= count; i++) wanted[id_of[names[i]]] = 1
    for (id in owner) {
        if (id in wanted) continue
        print "warn slots" owner[id], "belong to node", id, "which is gone: bring its data back, or let every node forget it"
        lost++
    }
    return lost
}

# Slots that no node knows an owner of: all in a new cluster, some when its making was interrupted,
# or when an operator let the nodes forget a lost one. They go to nodes that have none.
function give_slots(    range, part, slot, taken, total, next_node, i, first, edge) {
    for (range in owned) {
        if (split(range, part, "-") < 2) part[2] = part[1]
        for (slot = part[1] + 0; slot <= part[2] + 0; slot++) if (!(slot in taken)) { taken[slot] = 1; total++ }
    }
    if (total == 16384) return 0
    first = -1; next_node = 1
    for (slot = 0; slot <= 16384; slot++) {
        edge = 0
        for (i = 1; i <= primaries; i++) if (slot == int(i * 16384 / primaries)) edge = 1
        if (first >= 0 && (edge || slot in taken)) {
            while (next_node <= count && (slots_of[names[next_node]] != "" || master_of[names[next_node]] != "")) next_node++
            if (next_node > count) break
            print "slots", names[next_node++], first, slot - 1
            first = -1
        }
        if (first < 0 && slot < 16384 && !(slot in taken)) first = slot
    }
    return 1
}

# A primary without slots is of no use: it becomes a replica where there are fewest.
function replicate(    i, j, best, replicas, steps) {
    for (i = 1; i <= count; i++) if (master_of[names[i]] != "") replicas[master_of[names[i]]]++
    for (i = 1; i <= count; i++) {
        if (slots_of[names[i]] != "" || master_of[names[i]] != "") continue
        best = ""
        for (j = 1; j <= count; j++) {
            if (slots_of[names[j]] == "") continue
            if (best == "" || replicas[id_of[names[j]]] + 0 < replicas[best] + 0) best = id_of[names[j]]
        }
        if (best == "") continue
        replicas[best]++
        print "replicate", names[i], best
        steps++
    }
    return steps
}

# A replica that hears of its primary's new address by gossip knows it, and goes on copying from the old one. To be
# told its primary once more mends that.
function follow(    i, j, steps) {
    for (i = 1; i <= count; i++) {
        if (master_of[names[i]] == "" || copies[names[i]] == "") continue
        for (j = 1; j <= count; j++) {
            if (id_of[names[j]] != master_of[names[i]] || copies[names[i]] == ip[names[j]] ":" port[names[j]]) continue
            print "replicate", names[i], master_of[names[i]]
            steps++
        }
    }
    return steps
}

# Members that are gone for good: they failed, they own nothing, and all wanted nodes are there.
function forget(    id, i, wanted) {
    for (i = 1; i <= count; i++) wanted[id_of[names[i]]] = 1
    for (id in known) {
        if (id in wanted) continue
        for (i = 1; i <= count; i++) if ((names[i], id) in failed) print "forget", names[i], id
    }
}
