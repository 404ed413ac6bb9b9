class UnownedMemory:
    __slots__ = ("ptr", "size", "_owner", "device_id")  # as there: no weak references

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    __slots__ = ("mem", "offset")

    def __init__(self, mem, offset):
        self.mem, self.offset = mem, offset

    @property
    def ptr(self):
        return self.mem.ptr + self.offset
